"""The queues, for the page: the one place here that knows the engine, beside the examination."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import redis

from orders.bootstrap import QUEUE, WEBHOOK_QUEUE
from orders.errors import QueueUnavailable
from orders.ops.shared import Shared
from worker import DelayQueue, Letter, WorkerStatus
from worker.queue import LETTERS

Json = dict[str, Any]

FRESH_SECONDS = 1.0
MINUTES = 30
#: Letters on a page of the list; there may be more, up to as many as the queue reads at once.
ENOUGH = 50
#: A page of the list, and a page of ids, ends after so many reads of the queue's list, whatever was found.
READS, READS_FOR_IDS = 5, 10


@contextmanager
def answering() -> Iterator[None]:
    """Raises QueueUnavailable."""
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable from error


class Queues:
    """Raises QueueUnavailable from every method but ``state`` while Redis does not answer."""

    def __init__(self, client: redis.Redis, names: Sequence[str] = (QUEUE, WEBHOOK_QUEUE)) -> None:
        self._queues = {name: DelayQueue(client, name) for name in names}
        self._state = Shared(self._look, FRESH_SECONDS)

    def state(self) -> Json:
        """Each queue's counts, what becomes due, and its workers; or that Redis does not answer."""
        return self._state.get()

    def _look(self) -> Json:
        try:
            return {"answers": True, "queues": [_queue(each) for each in self._queues.values()]}
        except redis.RedisError:
            return {"answers": False}

    def check(self, order_id: str) -> Json | None:
        """Where an order's check is; None if the queue does not have it."""
        queue = self._queues[QUEUE]
        with answering():
            state = queue.look_up(order_id)
            workers = queue.workers() if state and state.place == "leased" else []
        if state is None:
            return None
        holders = [each.id for each in workers if order_id in each.details.get("held", [])]
        return {**state._asdict(), "held_by": holders[0] if holders else None}

    def letters(self, name: str, text: str, passed: int, *, only_ids: bool) -> Json:
        """Dead letters, newest first, from an entry of the list on, and where the next page begins."""
        queue, wanted = self._queues[name], text.casefold()
        reads = READS_FOR_IDS if only_ids else READS
        found: list[Letter] = []
        read = 0
        with answering():
            for ids in islice(queue.newest_dead_ids(passed), reads):
                read += 1
                letters = queue.letters(ids, with_payloads=False)
                found += [each for each in letters if wanted in _text(each)]
                if len(found) >= ENOUGH and not only_ids:
                    break
            else:
                if read < reads:
                    read = 0  # the list ended
            now_ms = queue.server_time_ms()
        return {
            "letters": [each.id if only_ids else _line(each, now_ms) for each in found],
            "passed": passed + read * LETTERS if read else None,
        }

    def letter(self, name: str, task_id: str) -> Json | None:
        """One dead letter with its traceback; None if it is none any more."""
        queue = self._queues[name]
        with answering():
            letters, now_ms = queue.letters([task_id], with_payloads=False), queue.server_time_ms()
        return {**letters[0].story, **_line(letters[0], now_ms)} if letters else None

    def requeue(self, name: str, ids: Iterable[str]) -> int:
        with self._changing(name) as queue:
            return len(queue.requeue(ids))

    def purge(self, name: str, ids: Iterable[str]) -> int:
        with self._changing(name) as queue:
            return len(queue.purge(ids))

    def pause(self, name: str) -> None:
        with self._changing(name) as queue:
            queue.pause()

    def resume(self, name: str) -> None:
        with self._changing(name) as queue:
            queue.resume()

    @contextmanager
    def _changing(self, name: str) -> Iterator[DelayQueue]:
        with answering():
            yield self._queues[name]
        self._state.forget()


def _queue(queue: DelayQueue) -> Json:
    stats = queue.stats()
    return {
        "name": queue.name,
        "scheduled": stats.scheduled,
        "due": stats.due,
        "leased": stats.leased,
        "dead": stats.dead,
        "paused": stats.paused,
        "next_due_in_ms": stats.next_due_in_ms,
        "oldest_due_age_ms": stats.oldest_due_age_ms,
        "oldest_dead_age_ms": stats.oldest_dead_age_ms,
        "due_per_minute": queue.forecast(MINUTES),
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
        "handled": details.get("handled"),  # a worker of an earlier version does not tell
    }


def _text(letter: Letter) -> str:
    """What of a letter can be searched."""
    story = letter.story
    return f"{letter.id}\n{story.get('reason')}\n{story.get('error')}".casefold()


def _line(letter: Letter, now_ms: int) -> Json:
    """A dead letter in a list."""
    story = letter.story
    return {
        "id": letter.id,
        "reason": str(story.get("reason")),
        "error": story.get("error"),
        "failures": story.get("failures"),
        "deliveries": story.get("deliveries"),
        "died_ms_ago": max(0, now_ms - int(story.get("died_at_ms") or now_ms)),
    }
