"""What workers cost while there is nothing to do."""

import threading
import time
from typing import Any

import pytest
import redis

from devtools.processes import wait_until
from devtools.valkey import Valkey
from tests.kit.pauses import last
from tests.kit.site import Build
from tests.kit.workers import running
from worker import Consumer, DelayQueue, Flow, Recurring, Worker

pytestmark = pytest.mark.slow

#: Not those that scripts call.
TOP_LEVEL = ("evalsha", "eval", "script|load", "ping", "subscribe")
WORKERS = 2
WATCHED_SECONDS = 30
#: Commands of one worker in a second, for each of its queues.
MOST = 0.5
QUEUES = 5
MANY_FLOWS = 100


def test_an_idle_worker_sends_a_command_in_two_seconds_for_each_queue(build: Build) -> None:
    site = build()
    for _ in range(WORKERS):
        site.start_worker()
    last(2)  # what a worker sends once, as it starts, is no cost of being idle
    before, began = commands(site.client), time.monotonic()
    last(WATCHED_SECONDS)
    sent, seconds = commands(site.client) - before, time.monotonic() - began
    # A claim, a turn to sweep, a beat, a ping of the wake channel: each kind may fall into the window
    # once more than its pace says.
    assert sent <= WORKERS * QUEUES * (MOST * seconds + 4)


def test_idle_recurring_tasks_and_consumers_send_no_more(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    flows = [
        Recurring(name, cron="0 0 29 2 *", timezone="UTC", handler=lambda _: None)
        for name in ("a", "b")
    ]
    stats = [DelayQueue(redis_client, flow.name).stats for flow in flows]
    with running(Worker(flows, valkey.url)), Consumer(valkey.url, "c") as consumer:
        wait_until(lambda: all(each().scheduled for each in stats), "both to be seeded")
        with consumer.take(timeout_seconds=2):
            before, began = commands(redis_client), time.monotonic()
        # Two slow polls of a recurring task, three beats, two or three pings of each wake channel.
        with consumer.take(timeout_seconds=2 * WATCHED_SECONDS) as task:
            assert task is None
        sent, seconds = commands(redis_client) - before, time.monotonic() - began
        assert sent <= MOST * seconds


def test_a_hundred_idle_flows_cost_no_more(valkey: Valkey, redis_client: redis.Redis) -> None:
    flows = [
        Flow(name=f"flow-{n}", handler=lambda _: None, sweep=lambda *_: [])
        for n in range(MANY_FLOWS)
    ]
    others = redis_client.info("clients")["connected_clients"]
    with running(Worker(flows, valkey.url)):
        last(10)
        before, began = commands(redis_client), time.monotonic()
        last(WATCHED_SECONDS)
        sent, seconds = commands(redis_client) - before, time.monotonic() - began
        connections = redis_client.info("clients")["connected_clients"] - others
        assert connections <= threading.active_count() <= 4 * MANY_FLOWS
    assert sent <= MOST * MANY_FLOWS * seconds


def commands(client: redis.Redis) -> int:
    """How many commands clients have sent."""
    stats: Any = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in TOP_LEVEL)
