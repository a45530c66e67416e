"""A queue in two shards, and a third that is no longer filled: who serves which, and who shows each or their sum."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families as parsed

from devtools.processes import ROOT, free_port, wait_until
from orders.queues import QUEUE, QUEUES
from orders.sql.tables import unpaid_orders
from tests.clock import bound
from tests.faults.site import Site
from worker.queue.shards import parts_of, shard_of
from worker.watch.monitoring import ask

pytestmark = pytest.mark.slow

SECOND, THIRD = f"{QUEUE}/1", f"{QUEUE}/2"
#: How late an order may be that a worker serves.
ON_TIME_MS = 1000
AN_HOUR = 3600


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    settings = {"QUEUE_SHARDS": "2", "QUEUE_SHARDS_BEFORE": "3", "LOOKAHEAD_SECONDS": f"{AN_HOUR}"}
    made = Site(tmp_path, database_url, settings)
    yield made
    made.close()


def of_shard(shard: int, ids: list[str]) -> set[str]:
    return {order_id for order_id in ids if shard_of(order_id, 2) == shard}


def unpaid(site: Site) -> set[str]:
    with site.services.engine.connect() as connection:
        return {*connection.scalars(sa.select(unpaid_orders.c.order_id))}


def metrics(port: int, name: str) -> dict[str, float]:
    """A metric of each queue, without those that are zero."""
    _, text = ask(f"http://127.0.0.1:{port}/metrics")
    samples = (sample for family in parsed(text) for sample in family.samples)
    return {
        each.labels["queue"]: each.value for each in samples if each.name == name and each.value
    }


def told(site: Site, *command: str) -> list[dict[str, Any]]:
    """What a command of the worker says, whatever its exit status."""
    done = subprocess.run(
        [sys.executable, "-m", "worker", *command, "--json"],
        cwd=ROOT,
        env={**os.environ, **site.env},
        capture_output=True,
        text=True,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def scheduled(site: Site, queue: str) -> int:
    [counts] = told(site, "stats", "--queue", queue)
    return int(counts["scheduled"])


def summaries(site: Site, *checks: str) -> list[str]:
    """What `doctor` finds in these checks of the queue."""
    return [
        each["summary"]
        for each in told(site, "doctor", "--queue", QUEUE)
        if each["check"] in checks
    ]


def shown(site: Site) -> dict[str, int]:
    """How many tasks the operators' page shows of each queue."""
    key, port = site.services.clients.create_key("anna", ["ops"]), free_port()
    site.start_api(port)
    origin, browser = f"http://127.0.0.1:{port}", build_opener(HTTPCookieProcessor())
    headers = {"Origin": origin, "Content-Type": "application/json"}
    body = json.dumps({"key": key}).encode()
    browser.open(Request(f"{origin}/ops/session", body, headers)).close()  # noqa: S310  our own
    with browser.open(f"{origin}/ops/state") as answer:
        return {each["name"]: each["scheduled"] for each in json.load(answer)["redis"]["queues"]}


@pytest.mark.clock
def test_a_worker_of_one_shard_serves_no_other(site: Site) -> None:
    port, first = free_port(), parts_of(site.queue)[0]
    site.start_worker("--queue", SECOND, METRICS_PORT=str(port))
    ids = site.place(40, 1, 2)
    wait_until(lambda: not of_shard(1, ids) & unpaid(site), "its own orders to be cancelled")
    assert site.latest_ms() <= bound(ON_TIME_MS)
    wait_until(lambda: first.stats().due == len(of_shard(0, ids)), "the others to be due")
    ids += site.place(20, 0, 0, scheduled=False)
    wait_until(lambda: not of_shard(1, ids) & unpaid(site), "its sweep to find its own")
    assert unpaid(site) == of_shard(0, ids)
    assert first.stats().due == len(of_shard(0, ids[:40]))
    wait_until(
        lambda: metrics(port, "worker_handled_tasks_total") == {SECOND: len(of_shard(1, ids))},
        "all that it handled to be counted",
    )
    site.start_worker("--queue", QUEUE)
    site.wait_until_drained()
    site.assert_each_was_cancelled_once(ids)


def test_whoever_looks_sees_the_shards_or_their_sum(site: Site) -> None:
    port, left = free_port(), parts_of(site.queue)[2]
    site.start_worker(METRICS_PORT=str(port))
    ids = site.place(40, AN_HOUR, AN_HOUR)
    left.schedule("left", delay_ms=1000 * AN_HOUR)
    each = {QUEUE: len(of_shard(0, ids)), SECOND: len(of_shard(1, ids)), THIRD: 1}
    assert {name: scheduled(site, name) for name in each} == {**each, QUEUE: 41}
    waiting = "worker_queue_scheduled_tasks"
    wait_until(lambda: metrics(port, waiting) == each, "each shard to be measured")
    assert shown(site) == {**dict.fromkeys(QUEUES, 0), QUEUE: 41}
    assert summaries(site, "queue.backlog", "queue.shards", "flow.tasks") == [
        *(f"{name}: 0 due, {count} scheduled" for name, count in each.items()),
        f"{THIRD} is being emptied: 1 task left",
        f"{QUEUE}: Redis has lost none of 40 tasks due within {2 * AN_HOUR} s",
    ]
    left.cancel("left")
    assert summaries(site, "queue.shards") == [
        f"{THIRD} is empty, and need not be served any longer"
    ]
