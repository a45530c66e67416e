"""The queues as the page shows them, and what it changes: dead letters and pauses."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from typing import Any, NamedTuple

import redis

from orders.caches import SharedRead
from orders.queues import QUEUE, QUEUES, answering
from worker import DelayQueue, Pauses, TaskState, WorkerStatus
from worker.queue.operator_side import LETTERS
from worker.runtime import pauses

Json = dict[str, Any]

#: How long `ShownQueues.state` is shared by all who ask this process.
FRESH_SECONDS = 1.0
#: Letters on one page of the list, and how often one page reads the queue's list, `LETTERS` at a time.
MOST, READS = 100, 5
#: The same for pages of ids only.
MOST_IDS, READS_FOR_IDS = 10 * LETTERS, 10
#: What is shown of a letter in a list, besides its id.
SHOWN = ("reason", "error", "failures", "deliveries", "died_at_ms")


class DeadPosition(NamedTuple):
    """Where a page of dead letters ends: when the last of them died, and its id."""

    died_at_ms: int
    id: str


Page = tuple[list[Any], DeadPosition | None]


class ShownQueues:
    """Raises QueueUnavailable while Redis does not answer, except when a pause is begun."""

    def __init__(self, client: redis.Redis, kept: Mapping[str, Pauses]) -> None:
        self._queues = {name: DelayQueue(client, name) for name in QUEUES}
        self._kept = kept
        #: Each queue's counts and workers; or that Redis does not answer.
        self.state = SharedRead(self._read_state, FRESH_SECONDS)

    def _read_state(self) -> Json:
        try:
            return {"answers": True, "queues": [_queue(each) for each in self._queues.values()]}
        except redis.RedisError:
            return {"answers": False}

    def put_off(self, order_ids: Sequence[str]) -> Json:
        """How many of these orders' checks are to be tried again later, and what became of the first one."""
        found: list[TaskState] = []
        with suppress(redis.RedisError):
            found = [*self._queues[QUEUE].look_up_many(order_ids).values()]
        later = [each for each in found if each.attempts and each.in_ms and each.in_ms > 0]
        return {"count": len(later), "such": str(later[0]) if later else ""}

    def letters(self, name: str, text: str, after: DeadPosition | None) -> Page:
        """A page of the dead letters that contain this text, newest first, and where it ends."""
        found, end = self._dead_letters(name, text, after, MOST, READS)
        with answering():
            now_ms = self._queues[name].server_time_ms()
        return [each | {"died_ms_ago": max(0, now_ms - each["died_at_ms"])} for each in found], end

    def letter_ids(self, name: str, text: str, after: DeadPosition | None) -> Page:
        """The ids of these letters, on larger pages."""
        found, end = self._dead_letters(name, text, after, MOST_IDS, READS_FOR_IDS)
        return [each["id"] for each in found], end

    def _dead_letters(
        self, name: str, text: str, after: DeadPosition | None, most: int, reads: int
    ) -> Page:
        """Those whose id, reason or error contains this text, in upper or lower case.

        The page follows ``after``, and ends after ``most`` letters, or after ``reads`` reads of the list.
        It may have fewer and still not be the last. None is skipped when others come or go meanwhile.
        """
        queue, wanted = self._queues[name], text.casefold()
        found: list[Json] = []
        end, read = after, 0
        with answering():
            for ids in islice(queue.newest_dead_ids(after), reads):
                read += 1
                for letter in queue.letters(ids, with_payloads=False):
                    shown = {"id": letter.id} | {each: letter.story[each] for each in SHOWN}
                    end = DeadPosition(shown["died_at_ms"], letter.id)
                    said = (letter.id, shown["reason"], shown["error"] or "")
                    if wanted in "\n".join(said).casefold():
                        found.append(shown)
                    if len(found) == most:
                        return found, end
        return found, end if read == reads else None

    def letter(self, name: str, task_id: str) -> Json | None:
        """Why a task is dead, with the traceback; None if it is no longer dead."""
        with answering():
            letters = self._queues[name].letters([task_id], with_payloads=False)
        return dict(letters[0].story) if letters else None

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
        with self._changing(name) as queue:
            pauses.pause(queue, self._kept[name], reason=reason, by=by)

    def resume(self, name: str) -> None:
        """End a pause. Raises StorageUnavailable, and then or without Redis it may go on: repeat it."""
        with self._changing(name) as queue:
            pauses.resume(queue, self._kept[name])

    @contextmanager
    def _changing(self, name: str) -> Iterator[DelayQueue]:
        with answering():
            yield self._queues[name]
        self.state.forget()


def _queue(queue: DelayQueue) -> Json:
    return {
        "name": queue.name,
        **asdict(queue.stats()),
        "pause": str(queue.find_pause() or ""),
        "workers": [_worker(each) for each in queue.workers()],
    }


def _worker(worker: WorkerStatus) -> Json:
    details = worker.details
    return {
        "id": worker.id,
        "silent": worker.silent,
        "heard_ms_ago": worker.heard_ms_ago,
        "up": details.get("up", True),
        "started_at": details.get("started_at"),
        "holds": details.get("holds", 0),
        "oldest_seconds": details.get("oldest_seconds", 0.0),
    }
