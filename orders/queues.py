"""The service's queues, for the HTTP API and the operators' page: counts, dead letters, pauses."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, get_args

import redis

from orders.errors import DeadLetterNotFound, QueueUnavailable
from worker import DelayQueue, Letter, Stats
from worker.queue.operator_side import LETTERS

#: The queue of the checks on unpaid orders, whose ids are the orders', and that of webhook deliveries,
#: whose ids are the deliveries'.
QueueName = Literal["order-timeout", "webhooks"]
QUEUES: tuple[str, ...] = get_args(QueueName)
QUEUE, WEBHOOK_QUEUE = QUEUES


@contextmanager
def answering() -> Iterator[None]:
    """Raises QueueUnavailable when Redis does not answer."""
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable from error


@dataclass(frozen=True, slots=True)
class LetterSummary:
    """A dead letter without its payload and traceback."""

    id: str
    reason: str
    error: str | None
    failures: int
    deliveries: int
    #: By the clock of Redis.
    died_at_ms: int

    @property
    def died_at(self) -> datetime:
        return datetime.fromtimestamp(self.died_at_ms / 1000, UTC)


class Queues:
    """Raises QueueUnavailable from every method while Redis does not answer."""

    def __init__(self, client: redis.Redis) -> None:
        self._queues = {name: DelayQueue(client, name) for name in QUEUES}

    def stats(self) -> dict[str, Stats]:
        """How many tasks are in each place, by the name of the queue."""
        with answering():
            return {name: queue.stats() for name, queue in self._queues.items()}

    def dead_letters(
        self,
        name: str,
        passed: int,
        *,
        most: int,
        reads: int = 5,
        wanted: Callable[[LetterSummary], bool] = lambda _: True,
    ) -> tuple[list[LetterSummary], int | None]:
        """A page of dead letters, newest first, and the ``passed`` of the next page; None on the last one.

        ``passed`` is how many entries of the list to skip. The page ends after ``most`` letters, or after
        ``reads`` reads of the list: an entry may no longer have a letter.
        """
        queue = self._queues[name]
        found: list[LetterSummary] = []
        at, end = passed, passed + reads * LETTERS
        with answering():
            for ids in islice(queue.newest_dead_ids(passed), reads):
                letters = queue.letters(ids, with_payloads=False)
                for letter in filter(wanted, map(_summary, letters)):
                    found.append(letter)
                    if len(found) == most:
                        return found, at + ids.index(letter.id) + 1
                at += LETTERS
        return found, at if at == end else None

    def requeue(self, name: str, ids: Iterable[str]) -> int:
        """Schedule dead tasks again, due now. Returns how many it found."""
        with self._changing(name) as queue:
            return len(queue.requeue(ids))

    def purge(self, name: str, ids: Iterable[str]) -> int:
        """Delete dead tasks for good. Returns how many it found."""
        with self._changing(name) as queue:
            return len(queue.purge(ids))

    def requeue_one(self, name: str, task_id: str) -> None:
        """Schedule one dead task again, due now. Raises DeadLetterNotFound."""
        if not self.requeue(name, [task_id]):
            raise DeadLetterNotFound

    def purge_one(self, name: str, task_id: str) -> None:
        """Delete one dead task for good. Raises DeadLetterNotFound."""
        if not self.purge(name, [task_id]):
            raise DeadLetterNotFound

    def pause(self, name: str) -> None:
        """Stop claims and sweeps."""
        with self._changing(name) as queue:
            queue.pause()

    def resume(self, name: str) -> None:
        """End a pause."""
        with self._changing(name) as queue:
            queue.resume()

    @contextmanager
    def _changing(self, name: str) -> Iterator[DelayQueue]:
        with answering():
            yield self._queues[name]


def _summary(letter: Letter) -> LetterSummary:
    story = letter.story
    return LetterSummary(
        letter.id,
        story["reason"],
        story["error"],
        story["failures"],
        story["deliveries"],
        story["died_at_ms"],
    )
