"""Ten workers and a year of nights, simulated: workers die, Redis is flushed, runs fail, nobody is there."""

import heapq
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import redis

from tests.unit.engine import station_of
from worker import DelayQueue, Recurring, Task
from worker.runtime.cron import Cron, Occurrence
from worker.runtime.isolation import handle
from worker.runtime.recurring import Recurrence

BERLIN = "Europe/Berlin"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: Midnight of 1 January, 26 March and 22 October 2026 in Berlin.
NEW_YEAR, SPRING, AUTUMN = 1_767_222_000_000, 1_774_479_600_000, 1_792_620_000_000
WORKERS = 10
LEASE_MS = 600_000
LONGEST_RUN_MS = 300_000
#: Less often than in earnest, for the test to be quick. Every time is looked at all the same.
POLL_SECONDS = 12 * 3600.0


class Killed(Exception):
    """The worker is gone."""


class ClockedQueue(DelayQueue):
    """A queue whose server has the time of the simulation."""

    def __init__(self, client: redis.Redis, year: "Year") -> None:
        super().__init__(client, "report")
        self._year = year
        #: The script that the worker does not live to call.
        self.dies_before = ""

    def _run(self, name: str, now_ms: int | None, *args: Any, **options: Any) -> Any:
        if name == self.dies_before:
            raise Killed
        now_ms = self._year.now_ms if now_ms is None else now_ms
        return super()._run(name, now_ms, *args, **options)

    def check_server(self) -> list[str]:
        return []


class SimulatedWorker:
    """Claims, runs and waits as a worker does."""

    def __init__(self, year: "Year") -> None:
        self.alive = True
        self._year = year
        self._queue = ClockedQueue(year.client, year)
        self._station = station_of(year.flow, self._queue)

    def look(self) -> None:
        if not self.alive:
            return
        year = self._year
        self._queue.dies_before = "seed" if year.rng.random() < year.deaths / 4 else ""
        try:
            claim = self._station.claim()
        except Killed:
            year.replace(self)
            return
        if not claim.tasks:
            assert claim.next_in_ms is not None
            year.at(min(POLL_SECONDS * 1000, claim.next_in_ms), self.look)
            return
        [task] = claim.tasks
        year.begin(task)
        runs_ms = year.rng.randint(1000, LONGEST_RUN_MS)
        if year.rng.random() < year.deaths:
            year.at(runs_ms, lambda: year.replace(self))
        else:
            year.at(runs_ms, lambda: self._end(task))

    def _end(self, task: Task) -> None:
        if self.alive:
            [results] = handle(self._year.flow, [task], lambda _: True)
            self._station.settler.settle(results)
            self.look()


class Year:
    """Its time, what happens in it, and what became of each run."""

    def __init__(self, client: redis.Redis, cron: str, start_ms: int, days: int, seed: int) -> None:
        self.client = client
        self.rng = random.Random(seed)
        self.flow = Recurring(
            "report",
            cron=cron,
            timezone=BERLIN,
            handler=self._handle,
            max_failures=4,
            backoff=lambda _: 30.0,
            lease_seconds=LEASE_MS / 1000,
        )
        self.now_ms, self.end_ms = start_ms, start_ms + days * DAY_MS
        self.times = [*_until(Cron(cron, BERLIN), start_ms, self.end_ms - HOUR_MS)]
        #: How likely it is that a worker dies during a run.
        self.deaths = 0.1
        self.workers: list[SimulatedWorker] = []
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        #: How late runs began, ms.
        self.late_ms: dict[str, int] = {}
        self.failures_left = {
            time.id: self.rng.choice([0] * 15 + [1, 1, 2, 3, 99]) for time in self.times
        }
        #: Claimed and not done when Redis lost everything: they may be done, if they were running.
        self.lost: set[str] = set()
        #: When somebody is there again.
        self.up_ms = 0
        #: Those that passed while no worker was there, except the one that Redis held.
        self.skipped: set[str] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, in_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + in_ms, next(self._number), event))

    def play(self) -> None:
        self.start(WORKERS)
        while self._events and self._events[0][0] < self.end_ms:
            # A wait that is not whole ends in the next millisecond.
            at_ms, _, event = heapq.heappop(self._events)
            self.now_ms = -int(-at_ms // 1)
            event()

    # -- runs --------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        assert self.now_ms >= task.due_at_ms, "early"
        self.begun[task.id] += 1
        self.late_ms.setdefault(task.id, self.now_ms - task.due_at_ms)

    def _handle(self, task: Task) -> None:
        if self.failures_left.get(task.id, 0):
            self.failures_left[task.id] -= 1
            raise ValueError("a bad night")
        self.done[task.id] += 1

    # -- what happens ------------------------------------------------------------------

    def start(self, workers: int) -> None:
        for _ in range(workers):
            self.workers.append(SimulatedWorker(self))
            self.at(self.rng.randint(0, 1000), self.workers[-1].look)

    def replace(self, worker: SimulatedWorker) -> None:
        """Another one starts some time after a worker died, unless all are down."""
        if worker.alive:
            worker.alive = False
            self.workers.remove(worker)
            self.at(self.rng.randint(1000, HOUR_MS), self._start_another)

    def _start_another(self) -> None:
        if self.workers:
            self.start(1)

    def flush(self) -> None:
        """Redis loses everything."""
        queue = ClockedQueue(self.client, self)
        claimed: Any = self.client.hkeys(queue.keys.tokens)
        self.lost |= {task_id.decode() for task_id in claimed}
        if not self.workers:  # nobody remembers what it held
            held: Any = self.client.zrangebyscore(queue.keys.scheduled, "-inf", self.up_ms)
            self.skipped |= {task_id.decode() for task_id in held}
        self.client.flushall()

    def all_down(self, for_ms: int) -> None:
        """Nobody is there for a while."""
        queue = ClockedQueue(self.client, self)
        held: Any = self.client.zrange(queue.keys.scheduled, 0, -1)
        up_ms = self.up_ms = self.now_ms + for_ms
        self.skipped |= {
            time.id
            for time in self.times
            if self.now_ms < time.due_at_ms <= up_ms and time.id.encode() not in held
        }
        for worker in self.workers:
            worker.alive = False
        self.workers.clear()
        self.at(for_ms, lambda: self.start(WORKERS))

    def dead(self) -> set[str]:
        return {letter.id for letter in ClockedQueue(self.client, self).dead(1000)}


def _until(cron: Cron, start_ms: int, end_ms: int) -> Iterator[Occurrence]:
    occurrence = cron.after(start_ms)
    while occurrence.due_at_ms < end_ms:
        yield occurrence
        occurrence = cron.after(occurrence.due_at_ms)


@pytest.fixture(autouse=True)
def _slow_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recurrence, "SLOW_POLL_SECONDS", POLL_SECONDS)


@pytest.mark.slow  # unit/test_worker_recurring.py has each of these faults by itself
@pytest.mark.parametrize(
    ("cron", "start_ms", "days", "changed"),
    [
        ("30 * * * *", AUTUMN, 6, {"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"}),
        ("30 * * * *", SPRING, 6, {"2026-03-29T03:30:00+02:00"}),
        (
            "30 2 * * *",
            NEW_YEAR,
            365,
            {"2026-03-29T03:00:00+02:00", "2026-10-25T02:30:00+02:00"},
        ),
    ],
)
@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("REPEAT", "1"))))
def test_every_time_is_run_once_and_none_early(  # noqa: PLR0917  parameters, given by name
    redis_client: redis.Redis, cron: str, start_ms: int, days: int, changed: set[str], seed: int
) -> None:
    year = Year(redis_client, cron, start_ms, days, seed)
    ids = [time.id for time in year.times]
    assert changed <= {*ids}
    interval_ms = days * DAY_MS // len(ids)
    for _ in range(len(ids) // 8):
        year.at(year.rng.randrange(days * DAY_MS) + 0.5, year.flush)
    for _ in range(len(ids) // 40):
        down = year.rng.randrange(days * DAY_MS), year.rng.randrange(4 * interval_ms)
        year.at(down[0], lambda for_ms=down[1]: year.all_down(for_ms))  # type: ignore[misc]

    year.play()

    bad = {task_id for task_id in ids if year.failures_left[task_id]}
    once = {*ids} - bad - year.lost - year.skipped
    assert {task_id: year.done[task_id] for task_id in once} == dict.fromkeys(once, 1)
    assert max(year.done.values()) == 1
    assert {*year.begun} <= {*ids} | {time.id for time in _after(year)}
    assert not bad & {*year.done}
    # It is about all of this.
    assert len(once) > 0.7 * len(ids)
    assert year.lost
    assert year.skipped
    assert max(year.begun.values()) > 1
    on_time = [task_id for task_id in year.late_ms if year.late_ms[task_id] <= 1]
    assert len(on_time) > 0.8 * len(ids)


def _after(year: Year) -> Iterator[Occurrence]:
    """Those that are due too late in the simulation to be sure to end in it."""
    return _until(year.flow.schedule, year.end_ms - HOUR_MS - 1, year.end_ms + DAY_MS)
