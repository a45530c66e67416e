"""Recurring tasks on real workers: killed, flushed, deployed anew, and looked after by an operator."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.processes import Process, python, wait_until
from devtools.valkey import Valkey
from tests.kit.flows import HANDLED, handled
from tests.kit.workers import running, tasks
from worker import DeadLetter, DelayQueue, Flow, Recurring, Task, Worker
from worker.cli import main
from worker.runtime.recurring import Recurrence

NEW_YEAR, MIDSUMMER = "0 0 1 1 *", "0 0 21 6 *"


@pytest.fixture
def clocks(valkey: Valkey, redis_client: redis.Redis, tmp_path: Path) -> Iterator[list[Process]]:
    """Three worker processes that write down every second, at work."""
    command = ["worker", "run", "tests.kit.flows:ticking"]
    started = [
        python(command, {"REDIS_URL": valkey.url}, tmp_path / f"worker-{n}.log") for n in range(3)
    ]
    queue = DelayQueue(redis_client, "tick")
    wait_until(lambda: len(queue.workers()) == len(started), "all of them to work")
    wait_until(lambda: redis_client.llen(HANDLED), "the first second")
    yield started
    for process in started:
        process.kill()


def more(client: redis.Redis, seconds: int) -> None:
    """Wait until so many more seconds were written down."""
    before: Any = client.llen(HANDLED)
    wait_until(lambda: client.llen(HANDLED) >= before + seconds, f"{seconds} seconds")


@pytest.mark.slow
def test_each_second_is_recorded_once_though_a_worker_is_killed(
    redis_client: redis.Redis, clocks: list[Process]
) -> None:
    redis_client.set("hold", 1)
    wait_until(lambda: redis_client.llen("blocked"), "one to be in the middle")
    row: Any = redis_client.lindex("blocked", 0)
    held = json.loads(row)
    [victim] = [process for process in clocks if process.pid == held["pid"]]
    victim.kill()
    more(redis_client, 3)
    wait_until(lambda: held["id"] in {row["id"] for row in handled(redis_client)}, "its second")
    rows = handled(redis_client)
    assert max(ids_of(rows).values()) == 1
    assert all(row["at_ms"] >= row["due_at_ms"] for row in rows)
    assert all(
        datetime.fromisoformat(row["id"]).timestamp() * 1000 == row["due_at_ms"] for row in rows
    )
    assert [row["deliveries"] for row in rows if row["id"] == held["id"]] != [0]


def ids_of(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["id"] for row in rows)


@pytest.mark.slow
def test_no_second_is_written_down_twice_though_redis_is_flushed(
    redis_client: redis.Redis, clocks: list[Process]
) -> None:
    for process in clocks[1:]:  # a run that ended in the same moment might be repeated by another
        process.stop()
    rows: list[dict[str, Any]] = []
    for _ in range(3):
        more(redis_client, 1)
        with redis_client.pipeline(transaction=True) as pipe:
            pipe.lrange(HANDLED, 0, -1)
            pipe.flushall()
            found, _ok = pipe.execute()
        rows += [json.loads(row) for row in found]
    more(redis_client, 2)
    rows += handled(redis_client)
    assert max(ids_of(rows).values()) == 1
    assert clocks[0].stop() == 0


def test_sigterm_leaves_the_next_second_and_no_lease(
    redis_client: redis.Redis, clocks: list[Process]
) -> None:
    assert [process.stop() for process in clocks] == [0, 0, 0]
    left = tasks(DelayQueue(redis_client, "tick"))
    # A run that was claimed in the moment of the signal is put back, with the record of its attempts.
    assert {*left} - {"tokens"} == {"scheduled", "seeded", "recurrence"}


# -- deploying -----------------------------------------------------------------------------


def yearly(cron: str) -> Recurring:
    return Recurring("yearly", cron=cron, timezone="UTC", handler=lambda _: None)


def test_a_new_schedule_replaces_the_old_while_both_run(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recurrence, "SLOW_POLL_SECONDS", 0.05)
    queue = DelayQueue(redis_client, "yearly")

    def planned() -> list[str]:
        ids: Any = redis_client.zrange(queue.keys.scheduled, 0, -1)
        return [task_id.decode()[4:10] for task_id in ids]

    old, new = (Worker([yearly(cron)], valkey.url) for cron in (NEW_YEAR, MIDSUMMER))
    with running(old):
        wait_until(lambda: planned() == ["-01-01"], "the old schedule")
        with running(new):
            wait_until(lambda: planned() == ["-06-21"], "the new schedule")
            for _ in range(5):
                redis_client.flushall()
                wait_until(lambda: planned() == ["-06-21"], "the new schedule again")
        with running(Worker([yearly(NEW_YEAR)], valkey.url)):
            wait_until(lambda: planned() == ["-01-01"], "the old schedule again")


# -- an operator ---------------------------------------------------------------------------


def flows() -> list[Flow]:
    return [Recurring("operated", cron=NEW_YEAR, timezone="UTC", handler=_refuse)]


def _refuse(_: Task) -> None:
    raise DeadLetter("no paper")


def test_the_operators_commands_work_on_its_queue(
    valkey: Valkey, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> Any:
        assert main([*arguments, "--redis-url", valkey.url, "--flows", f"{__name__}:flows"]) == 0
        return capsys.readouterr().out

    queue = DelayQueue(redis_client, "operated")
    with running(Worker(flows(), valkey.url)):
        wait_until(lambda: queue.stats().scheduled, "the next run")
        ids: Any = redis_client.zrange(queue.keys.scheduled, 0, -1)
        [new_year] = [task_id.decode() for task_id in ids]
        queue.schedule(new_year, delay_ms=0)
        wait_until(lambda: queue.stats().dead, "its dead letter")
        wait_until(lambda: "operated" in command("workers"), "its worker")
    capsys.readouterr()  # the worker's log
    [letter] = map(json.loads, command("dead", "list", "--json").splitlines())
    assert (letter["id"], letter["reason"]) == (new_year, "no paper")
    assert json.loads(command("stats", "--json"))["dead"] == 1
    assert command("dead", "requeue", new_year) == "requeued 1\n"
    with running(Worker(flows(), valkey.url)):
        wait_until(lambda: queue.stats().dead, "it to be dead again")
    capsys.readouterr()
    assert command("dead", "purge", "--all") == "purged 1\n"
