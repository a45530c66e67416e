"""The service's queues as operators see them, over HTTP and on the page: counts, dead letters, pauses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import redis

from orders.errors import DeadLetterNotFound, QueueUnavailable
from worker import DelayQueue, Letter, Stats
from worker.queue import LETTERS


@contextmanager
def answering() -> Iterator[None]:
    """Raises QueueUnavailable."""
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable from error


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that is not tried again, and why."""

    id: str
    reason: str
    error: str | None
    failures: int
    deliveries: int
    died_at: datetime


class Queues:
    """Raises QueueUnavailable from every method while Redis does not answer."""

    def __init__(self, client: redis.Redis, names: Sequence[str]) -> None:
        self._queues = {name: DelayQueue(client, name) for name in names}

    def stats(self) -> dict[str, Stats]:
        """How many tasks are in each place, by the name of the queue."""
        with answering():
            return {name: queue.stats() for name, queue in self._queues.items()}

    def dead_letters(
        self, name: str, *, page_size: int, passed: int
    ) -> tuple[list[DeadLetter], int | None]:
        """A page of dead letters, newest first, and the entry of the list at which the next one begins."""
        found, following = self.newest_letters(name, passed, most=page_size)
        return [_dead_letter(each) for each in found], following

    def newest_letters(
        self,
        name: str,
        passed: int,
        *,
        most: int,
        reads: int = 5,
        wanted: Callable[[Letter], bool] = lambda _: True,
    ) -> tuple[list[Letter], int | None]:
        """Dead letters, newest first, from an entry of the list on; and the entry at which to go on, if any.

        It ends after so many reads of the list, whatever was found: an entry may have no letter any more.
        """
        queue = self._queues[name]
        found: list[Letter] = []
        read = 0
        with answering():
            for ids in islice(queue.newest_dead_ids(passed), reads):
                for letter in filter(wanted, queue.letters(ids, with_payloads=False)):
                    found.append(letter)
                    if len(found) == most:
                        return found, passed + read * LETTERS + ids.index(letter.id) + 1
                read += 1
        return found, passed + read * LETTERS if read == reads else None

    def requeue(self, name: str, ids: Iterable[str]) -> int:
        """Schedule dead tasks again, due now. Returns how many it found."""
        with self._changing(name) as queue:
            return len(queue.requeue(ids))

    def purge(self, name: str, ids: Iterable[str]) -> int:
        """Delete dead tasks for good. Returns how many it found."""
        with self._changing(name) as queue:
            return len(queue.purge(ids))

    def requeue_one(self, name: str, task_id: str) -> None:
        """Raises DeadLetterNotFound."""
        if not self.requeue(name, [task_id]):
            raise DeadLetterNotFound

    def purge_one(self, name: str, task_id: str) -> None:
        """Raises DeadLetterNotFound."""
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


def _dead_letter(letter: Letter) -> DeadLetter:
    story = letter.story
    return DeadLetter(
        letter.id,
        story["reason"],
        story["error"],
        story["failures"],
        story["deliveries"],
        datetime.fromtimestamp(story["died_at_ms"] / 1000, UTC),
    )
