"""What happens at the same time: threads that begin together, and duels that stay close."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from devtools.processes import wait_until
from tests.kit.moments import clock
from tests.kit.shop import Shop

T = TypeVar("T")


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """Run them at once, a thread each; their results. Raises what any of them raised."""
    barrier = threading.Barrier(len(tasks), timeout=60)

    def released(task: Callable[[], Any]) -> Any:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        running = [pool.submit(released, task) for task in tasks]
        return [task.result() for task in running]


def duels(
    first: Callable[[T], bool], second: Callable[[T], bool], over: Sequence[T], *, step_us: float
) -> tuple[list[T], list[T]]:
    """Have two actions meet over each of these, two pairs of threads at a time; what each has won."""
    halves = [Duel(first, second, over[half::2], step_us) for half in range(2)]
    together(*(side for duel in halves for side in (duel.first, duel.second)))
    return (halves[0].won[0] + halves[1].won[0], halves[0].won[1] + halves[1].won[1])


class Duel(Generic[T]):
    """Two actions race for one item after another, released each time by a barrier.

    When the first wins, it starts a little later the next time, so that both stay neck and neck. The
    step doubles while the same one wins: on a slow machine one may take much longer than the other.
    """

    JITTER_SECONDS = 0.0001

    def __init__(
        self,
        first: Callable[[T], bool],
        second: Callable[[T], bool],
        over: Sequence[T],
        step_us: float,
    ) -> None:
        self._actions = first, second
        self._over = over
        self._step_seconds = step_us / 1_000_000
        self._barrier = threading.Barrier(2, timeout=60)
        self._rng = random.Random(len(over))
        self._lead = self._next_lead = 0.0  # how much earlier than the second the first starts
        self._stride = self._step_seconds
        self._first_won = False
        #: How long the latest action of each took, in seconds.
        self._took = [0.0, 0.0]
        self.won: tuple[list[T], list[T]] = ([], [])

    def first(self) -> None:
        for each in self._over:
            self._release(-self._lead)
            self._next_lead = self._closer(won=self._act(0, each))

    def second(self) -> None:
        for each in self._over:
            self._release(self._lead)
            self._act(1, each)

    def _closer(self, *, won: bool) -> float:
        """The first's next lead, never so great that one ends before the other begins."""
        again = won == self._first_won
        self._stride = min(2 * self._stride, sum(self._took)) if again else self._step_seconds
        self._first_won = won
        lead = self._lead + (-self._stride if won else self._stride)
        return max(-self._took[1], min(self._took[0], lead))

    def _act(self, side: int, each: T) -> bool:
        began = time.perf_counter()
        won = self._actions[side](each)
        self._took[side] = time.perf_counter() - began
        if won:
            self.won[side].append(each)
        return won

    def _release(self, seconds: float) -> None:
        # Twice: between the two, one thread alone moves the lead.
        if self._barrier.wait() == 0:
            self._lead = self._next_lead
        self._barrier.wait()
        start = time.perf_counter() + seconds + self._rng.uniform(0, self.JITTER_SECONDS)
        while time.perf_counter() < start:
            time.sleep(0)  # hands the interpreter to the other threads


@contextmanager
def waiting(shop: Shop, run: Callable[[], Any]) -> Iterator[tuple[sa.Connection, list[Any]]]:
    """An open transaction, for which ``run`` waits at the end; and then what came of that.

    With it comes the database's time when it still waited.
    """
    found: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        with shop.engine.begin() as other:
            yield other, found
            task = pool.submit(run)
            wait_until(lambda: blocked(shop), "the other to wait")
            waited_at = other.execute(sa.select(clock())).scalar_one()
        error = task.exception()
        found += [task.result() if error is None else error, waited_at]


def blocked(shop: Shop, count: int = 1) -> bool:
    query = sa.text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with shop.engine.connect() as connection:
        return bool(connection.scalar(query) == count)
