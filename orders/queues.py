"""The service's queues, for the HTTP API and the operators' page: counts, dead letters, pauses."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, NamedTuple, get_args

import redis
import sqlalchemy as sa

from orders.errors import QueueUnavailable, StorageUnavailable
from orders.sql.keeping import queue_pauses
from worker import DelayQueue, Letter, Pauses, Stats, Unavailable
from worker.records import TablePauses
from worker.runtime import pauses

#: The queue of the checks on unpaid orders, whose ids are the orders', and that of webhooks, whose ids
#: are those of deliveries that are due, and of subscriptions that are behind; those of freezes and of
#: payment attempts; and that of retention, whose ids are the times when it runs.
QueueName = Literal["order-timeout", "webhooks", "freezes", "attempts", "retention"]
QUEUES: tuple[str, ...] = get_args(QueueName)
QUEUE, WEBHOOK_QUEUE, FREEZE_QUEUE, ATTEMPT_QUEUE, RETENTION_QUEUE = QUEUES


@contextmanager
def answering() -> Iterator[None]:
    """Raises QueueUnavailable when Redis does not answer."""
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable from error


@contextmanager
def _storage() -> Iterator[None]:
    try:
        yield
    except Unavailable as error:
        raise StorageUnavailable from error


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


class DeadPosition(NamedTuple):
    """Where a page of dead letters ends: when the last of them died, and its id."""

    died_at_ms: int
    id: str


class Queues:
    """Raises QueueUnavailable while Redis does not answer, except when a pause is begun or found beside the orders."""

    def __init__(self, client: redis.Redis, checks: DelayQueue, engine: sa.Engine) -> None:
        self._queues = {name: DelayQueue(client, name) for name in QUEUES} | {QUEUE: checks}
        #: What Redis cannot lose.
        self.pauses: Mapping[str, Pauses] = {
            name: TablePauses(engine, queue_pauses, name) for name in QUEUES
        }

    def stats(self) -> dict[str, Stats]:
        """How many tasks are in each place, by the name of the queue."""
        with answering():
            return {name: queue.stats() for name, queue in self._queues.items()}

    def dead_letters(
        self,
        name: str,
        after: DeadPosition | None,
        *,
        most: int,
        reads: int = 5,
        wanted: Callable[[LetterSummary], bool] = lambda _: True,
    ) -> tuple[list[LetterSummary], DeadPosition | None]:
        """A page of dead letters, newest first, and where it ends; None on the last one.

        The page follows ``after``, and ends after ``most`` letters, or after ``reads`` reads of the list.
        """
        queue = self._queues[name]
        found: list[LetterSummary] = []
        end, read = after, 0
        with answering():
            for ids in islice(queue.newest_dead_ids(after), reads):
                read += 1
                for letter in map(_summary, queue.letters(ids, with_payloads=False)):
                    end = DeadPosition(letter.died_at_ms, letter.id)
                    if wanted(letter):
                        found.append(letter)
                    if len(found) == most:
                        return found, end
        return found, end if read == reads else None

    def requeue(self, name: str, ids: Iterable[str]) -> int:
        """Schedule dead tasks again, due now. Returns how many it found."""
        with self._changing(name) as queue:
            return len(queue.requeue(ids))

    def purge(self, name: str, ids: Iterable[str]) -> int:
        """Delete dead tasks for good. Returns how many it found."""
        with self._changing(name) as queue:
            return len(queue.purge(ids))

    def pause(self, name: str, *, reason: str, by: str) -> None:
        """Stop claims and sweeps, with Redis or without. Raises StorageUnavailable."""
        with self._changing(name) as queue, _storage():
            pauses.pause(queue, self.pauses[name], reason=reason, by=by)

    def resume(self, name: str) -> None:
        """End a pause. Raises StorageUnavailable, and then or without Redis it may go on: repeat it."""
        with self._changing(name) as queue, _storage():
            pauses.resume(queue, self.pauses[name])

    def is_paused(self, name: str) -> bool:
        """Whether a queue is paused, in Redis or beside the orders. Raises StorageUnavailable."""
        with answering(), _storage():
            return pauses.find(self._queues[name], self.pauses[name]) is not None

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
