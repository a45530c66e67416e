"""Simulates workers on due orders: what was measured here, then larger machines, and what goes wrong.

    python -m benchmarks.simulate [--seed 1]

A thread claims up to 500 due orders from Redis, has one statement cancel them, and acks them. How long each step takes is
drawn from what `benchmarks.capacity` measured of it alone; everything else follows, and is compared with what a real worker
did in the same run. The API, networks and the machine's own pauses are left out. Times are in ms.
"""

import argparse
import bisect
import itertools
import random
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import simpy

from benchmarks.capacity import BATCHES, CREWS, LATENESS, PERCENTILES, RATES
from benchmarks.report import Report, load

#: The worker's own: how much it claims, and of which backlog the newest, too; the time between two sweeps, and how long Redis is
#: silent before a sweep cancels without it.
BATCH, BACKLOG, SWEEP_MS, SILENCE_MS = 500, 1000, 1000, 1500
#: A thread that has waited for longer is as slow as one that has rested.
RESTED_MS = 5
#: Where the times of the steps are, by the number of orders in a batch.
ROWS = {size: f"{size} in a batch" for size, _, rest_ms in BATCHES if not rest_ms}
RESTED = "1 every 10 ms"
#: For how long orders are due, from when to when something is wrong, how many are due in one second, and how much slower
#: statements are.
SECONDS, FROM_MS, UNTIL_MS, HERD, SLOWER = 60, 10_000, 40_000, 1_000_000, 100
Steps = Generator[simpy.Event, Any, Any]
#: When orders are due, and how many.
Due = tuple[float, int]


@dataclass(frozen=True)
class Cell:
    """One PostgreSQL with its workers and one Redis."""

    workers: int = 1
    threads: int = 2
    #: How many statements run beside each other. Those that share SKUs wait for each other.
    statements: int = 1
    redis_away: bool = False
    slower: float = 1


#: And how many orders are due in a second.
CELLS = {"this machine": (Cell(), 500), "32 cores": (Cell(workers=4, statements=8), 10_000)}
TROUBLES: dict[str, dict[str, Any]] = {
    f"{HERD:,} due in one second": {},
    "Redis away for 30 s": {"redis_away": True},
    f"statements {SLOWER} times as slow for 30 s": {"slower": SLOWER},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate workers.")
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    settings = {**load("steps").settings, "seed": str(seed)}
    reproduced, simulated = Report("reproduced", settings), Report("simulated", settings)
    for row, (measured, ours) in reproduce(seed).items():
        reproduced.add(row, measured=measured, simulated=ours)
    for trouble, cell in itertools.product(TROUBLES, CELLS):
        run = troubled(trouble, cell, seed)
        late = {f"late_p{percent}_ms": run.percentile(percent) for percent in (50, 99)}
        latest = {"latest_s": run.percentile(100) / 1000, "caught_up_after_s": run.caught_up_s()}
        simulated.add(f"{trouble}: {cell}", **late, **latest)
    reproduced.save()
    simulated.save()


def reproduce(seed: int) -> dict[str, tuple[float, float]]:
    """What was measured of a real worker here, and the same simulated."""
    steps, rows = load("steps"), {}
    for workers, threads in CREWS:
        row, orders = f"drain, {workers} x {threads}", 40_000
        run = Simulation(Cell(workers, threads), [(0, orders)], seed)
        seconds = max(at + late for at, late, _ in run.late) / 1000
        rows[f"{row}, orders per s"] = steps.median(row, "orders_per_s"), orders / seconds
    for rate in RATES:
        run = Simulation(Cell(threads=1), [(1000 * n / rate, 1) for n in range(rate * 6)], seed)
        run.late = [each for each in run.late if each[0] >= 1000]  # as measured
        for percent in LATENESS:
            measured = steps.median(f"due, {rate}/s", f"late_p{percent}_ms")
            rows[f"due, {rate}/s, late p{percent} ms"] = measured, run.percentile(percent)
    return rows


def troubled(trouble: str, name: str, seed: int) -> "Simulation":
    """A cell in trouble, while orders are due at a steady rate."""
    cell, per_second = CELLS[name]
    due = [(tick * 10.0, per_second // 100) for tick in range(SECONDS * 100)]
    if not TROUBLES[trouble]:
        due += [(FROM_MS + 1000 * n / HERD, BATCH) for n in range(0, HERD, BATCH)]
    return Simulation(replace(cell, **TROUBLES[trouble]), due, seed)


class StepTimes:
    """How long the steps of a worker take."""

    def __init__(self) -> None:
        measured = load("steps")
        self.wake_ms = measured.median("a thread", "wake_ms")
        self._of = {
            row: {column: measured.median(row, column) for column in measured.figures[row]}
            for row in (*ROWS.values(), RESTED)
        }

    def ms(self, step: str, orders: int, chance: float, *, rested: bool) -> float:
        """The time within which a step with so many orders ends with this probability."""
        values = [self.get(f"{step}_p{cut}_ms", orders, rested=rested) for cut in PERCENTILES]
        return between([cut / 100 for cut in PERCENTILES], values, chance)

    def get(self, column: str, orders: int, *, rested: bool = False) -> float:
        if rested and orders == 1:
            return self._of[RESTED][column]
        return between([*ROWS], [self._of[row][column] for row in ROWS.values()], orders)


def between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """On the line through these points; beyond them, as at the nearest."""
    n = bisect.bisect_right(xs, x)
    if n in {0, len(xs)}:
        return ys[max(0, n - 1)]
    return ys[n - 1] + (ys[n] - ys[n - 1]) * (x - xs[n - 1]) / (xs[n] - xs[n - 1])


class Simulation:
    """A cell and what falls due. ``late`` says when orders were due, how late they were cancelled, and how many."""

    def __init__(self, cell: Cell, due: Iterable[Due], seed: int) -> None:
        self.late: list[tuple[float, float, int]] = []
        self._cell, self._random, self._times = cell, random.Random(seed), StepTimes()
        self._coming, self._waiting = deque(sorted(due)), deque[Due]()
        self._claims = 0
        self._env = simpy.Environment()
        self._redis = simpy.Resource(self._env)
        self._database = simpy.Resource(self._env, cell.statements)
        for _ in range(cell.workers):
            claiming = simpy.Resource(self._env)  # one thread of a worker waits and claims
            for _ in range(cell.threads):
                self._env.process(self._thread(claiming))
        if cell.redis_away:
            self._env.process(self._sweeper())
        self._env.run()

    def percentile(self, percent: float) -> float:
        """How late this one of all orders was."""
        ordered = sorted((late, count) for _, late, count in self.late)
        ends = [*itertools.accumulate(count for _, count in ordered)]
        return ordered[bisect.bisect_left(ends, ends[-1] * percent / 100)][0]

    def caught_up_s(self) -> float:
        """After how many seconds of trouble no order was a second late any more."""
        return (
            max((at + late - FROM_MS for at, late, _ in self.late if late > 1000), default=0) / 1000
        )

    def _thread(self, claiming: simpy.Resource) -> Steps:
        warm_up_ms = self._times.get("first_ms", BATCH)
        while self._coming or self._waiting:
            with claiming.request() as turn:
                yield turn
                rested = yield from self._wait()
                batch = yield from self._claim(rested=rested)
            if batch:
                yield self._env.timeout(warm_up_ms)
                warm_up_ms = 0
                yield from self._cancel(batch, rested=rested)
                yield from self._call_redis("ack", batch, rested=rested)

    def _wait(self) -> Steps:
        """Until an order is due. Returns whether that took long."""
        wait = 0 if self._waiting or not self._coming else self._coming[0][0] - self._env.now
        if wait > 0:
            yield self._env.timeout(wait + self._times.wake_ms)
        return wait > RESTED_MS

    def _claim(self, *, rested: bool) -> Steps:
        if self._cell.redis_away and FROM_MS <= self._env.now < UNTIL_MS:
            yield self._env.timeout(self._random.uniform(100, 1000))  # then it connects again
            return []
        self._claims += 1
        batch = self._take(newest=self._claims % 2 == 0)
        yield from self._call_redis("claim", batch, rested=rested)
        return batch

    def _call_redis(self, step: str, batch: list[Due], *, rested: bool) -> Steps:
        with self._redis.request() as turn:
            yield turn
            yield self._env.timeout(self._ms(step, batch, rested=rested))

    def _take(self, *, newest: bool = False) -> list[Due]:
        """Up to a batch of what is due: of a backlog the oldest, or the ``newest``."""
        while self._coming and self._coming[0][0] <= self._env.now:
            self._waiting.append(self._coming.popleft())
        newest = newest and sum(count for _, count in self._waiting) > BACKLOG
        batch, left = list[Due](), BATCH
        while left and self._waiting:
            at, count = self._waiting.pop() if newest else self._waiting.popleft()
            batch.append((at, min(count, left)))
            if count > left:
                (self._waiting.append if newest else self._waiting.appendleft)((at, count - left))
            left -= batch[-1][1]
        return batch

    def _cancel(self, batch: list[Due], *, rested: bool) -> Steps:
        with self._database.request() as turn:
            yield turn
            is_slow = FROM_MS <= self._env.now < UNTIL_MS
            took = self._ms("handle", batch, rested=rested) * (self._cell.slower if is_slow else 1)
            share = self._times.get("decided_share", _orders(batch), rested=rested)
            yield self._env.timeout(took * share)
            self.late += [(at, self._env.now - at, count) for at, count in batch]
            yield self._env.timeout(took * (1 - share))

    def _sweeper(self) -> Steps:
        """Every worker sweeps while Redis is away, and all find the same orders, so they count as one."""
        yield self._env.timeout(self._random.uniform(0, SWEEP_MS))
        while self._coming or self._waiting:
            until = self._env.now + SWEEP_MS
            while FROM_MS + SILENCE_MS <= self._env.now < min(until, UNTIL_MS):
                if not (batch := self._take()):
                    break
                yield from self._cancel(batch, rested=False)
            yield self._env.timeout(max(0.0, until - self._env.now))

    def _ms(self, step: str, batch: list[Due], *, rested: bool) -> float:
        return self._times.ms(step, max(1, _orders(batch)), self._random.random(), rested=rested)


def _orders(batch: list[Due]) -> int:
    return sum(count for _, count in batch)


if __name__ == "__main__":
    main()
