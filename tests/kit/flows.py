"""Flows for real worker processes. What they did is written to Redis, to be read by the tests."""

import gc
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import redis

from worker import Backoff, Due, Flow, Recurring, Task, Unavailable, connect, one_at_a_time
from worker.runtime import hangs, lane, worker
from worker.runtime.sweep import Sweeper

HANDLED = "handled"
DOWN = "down"
QUICK = Backoff(base_seconds=0.02, cap_seconds=0.05)


def note(client: redis.Redis, tasks: Sequence[Task], **more: object) -> None:
    """Write down, for each task, that it was handled, and when."""
    at_ms = time.time_ns() // 1_000_000
    rows = [
        json.dumps(
            {
                "id": task.id,
                "due_at_ms": task.due_at_ms,
                "deliveries": task.deliveries,
                "at_ms": at_ms,
                **more,
            }
        )
        for task in tasks
    ]
    client.rpush(HANDLED, *rows)


def handled(client: redis.Redis) -> list[dict[str, Any]]:
    """What was written down, in order."""
    rows: Any = client.lrange(HANDLED, 0, -1)
    return [json.loads(row) for row in rows]


def recording() -> list[Flow]:
    """A flow that writes down what it handles."""
    client = connect(os.environ["REDIS_URL"])

    def handler(tasks: Sequence[Task]) -> None:
        note(client, tasks, flow="recorded", frozen=gc.get_freeze_count())

    return [Flow(name="recorded", handler=handler, batch_size=100)]


def recording_when_woken() -> list[Flow]:
    """The same, in a worker that waits for a day when nothing wakes it."""
    lane.SLOW_POLL_SECONDS = 86_400
    return recording()


def frail(**settings: Any) -> list[Flow]:
    """Kills its worker on a task called killer, fails on poison, waits on block."""
    client = connect(os.environ["REDIS_URL"])
    patient = connect(os.environ["REDIS_URL"], timeout_seconds=60)

    def handler(tasks: Sequence[Task]) -> None:
        ids = {task.id for task in tasks}
        if "killer" in ids:
            client.rpush("deaths", client.llen(HANDLED))
            os._exit(7)
        if "poison" in ids:
            raise ValueError("poison")
        if "block" in ids:
            client.rpush("blocked", os.getpid())
            patient.blpop(["unblock"], timeout=0)
        note(client, tasks)

    # A short lease, and one that a busy machine can keep.
    settings = {"lease_seconds": 1, "max_failures": 3, "backoff": QUICK, **settings}
    return [Flow(name="frail", handler=handler, **settings)]


def lasting() -> list[Flow]:
    """The same, with a lease that a very busy machine can keep."""
    return frail(lease_seconds=3)


def limited() -> list[Flow]:
    """The same, with a handler that may not run for long."""
    return frail(lease_seconds=2, max_runtime_seconds=1)


def frail_beside_slow() -> list[Flow]:
    """Two flows in lanes of their own, with short leases."""
    return [*frail(lease_seconds=2), *slow(lease_seconds=2)]


def slow(lease_seconds: float = 4) -> list[Flow]:
    """Takes as many seconds for each task as its payload says, and then writes it down."""
    client = connect(os.environ["REDIS_URL"])

    def work(task: Task) -> None:
        time.sleep(float(task.payload))
        note(client, [task])

    return [Flow(name="slow", handler=one_at_a_time(work), lease_seconds=lease_seconds)]


def dependent() -> list[Flow]:
    """Cannot work while the key `down` is there."""
    client = connect(os.environ["REDIS_URL"])

    def probe() -> None:
        if client.exists(DOWN):
            raise Unavailable("down")

    def handler(tasks: Sequence[Task]) -> None:
        probe()
        note(client, tasks)

    return [Flow(name="dependent", handler=handler, probe=probe)]


def occupied() -> list[Flow]:
    """Waits in an executor of its own, on `unblock`; forks a child first. Stops after a moment."""
    worker.DRAIN_SECONDS = 0.1
    client = connect(os.environ["REDIS_URL"])
    patient = connect(os.environ["REDIS_URL"], timeout_seconds=600)
    executor = ThreadPoolExecutor(1)

    def handler(_: Sequence[Task]) -> None:
        child = get_context("fork").Process(target=time.sleep, args=[600], daemon=True)
        child.start()
        child.terminate()
        child.join()
        client.rpush("blocked", child.exitcode or 0)
        executor.submit(patient.blpop, ["unblock"], timeout=0).result()

    return [Flow(name="occupied", handler=handler)]


def ticking() -> list[Flow]:
    """Writes down every second. Whoever deletes `hold` waits in the middle."""
    client = connect(os.environ["REDIS_URL"])
    patient = connect(os.environ["REDIS_URL"], timeout_seconds=60)

    def handler(task: Task) -> None:
        if client.delete("hold"):
            client.rpush("blocked", json.dumps({"pid": os.getpid(), "id": task.id}))
            patient.blpop(["unblock"], timeout=0)
        note(client, [task])

    settings: Any = {"lease_seconds": 3, "backoff": QUICK}
    return [Recurring("tick", cron="* * * * * *", timezone="UTC", handler=handler, **settings)]


def hanging(what: str) -> list[Flow]:
    """Its probe or its sweep waits for `unblock`."""
    hangs.HANGS_SECONDS = 0.1
    client = connect(os.environ["REDIS_URL"], timeout_seconds=60)

    def hang() -> None:
        client.rpush("blocked", what)
        client.blpop(["unblock"], timeout=0)

    def sweep(_after: float | None, _before: float) -> Iterator[list[Due]]:
        hang()
        yield []

    if what == "probe":
        return [Flow(name="hanging", handler=lambda _: None, probe=hang)]
    return [Flow(name="hanging", handler=lambda _: None, sweep=sweep)]


def hanging_probe() -> list[Flow]:
    """A probe that does not return."""
    return hanging("probe")


def hanging_sweep() -> list[Flow]:
    """A sweep that does not return."""
    return hanging("sweep")


def torn() -> list[Flow]:
    """Waits on the task block, and the thread of its sweep ends once `leave` is there."""
    client, run = connect(os.environ["REDIS_URL"]), Sweeper.round

    def torn_round(sweeper: Sweeper) -> float:
        if client.exists("leave"):
            raise SystemExit
        return run(sweeper)

    patch.object(Sweeper, "round", torn_round).start()
    return frail(lease_seconds=2, sweep=lambda _after, _before: (), sweep_seconds=0.1)
