"""The queues, for the page: what it shows beyond `orders.queues`, and shares with all who look."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from orders.bootstrap import QUEUE, WEBHOOK_QUEUE
from orders.ops.shared import Shared
from orders.queues import Queues, answering
from worker import DelayQueue, Letter, WorkerStatus
from worker.queue import LETTERS

Json = dict[str, Any]

FRESH_SECONDS = 1.0
MINUTES = 30
#: Letters on a page of the list.
MOST = 100
#: A page of ids ends after so many reads of the queue's list.
READS_FOR_IDS = 10


class ShownQueues(Queues):
    """Raises QueueUnavailable from every method but ``state`` while Redis does not answer."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client, (QUEUE, WEBHOOK_QUEUE))
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

    def letters(self, name: str, text: str, passed: int) -> Json:
        """Dead letters that have this text, newest first, and where the next page begins."""
        found, following = self.newest_letters(name, passed, most=MOST, wanted=_has(text))
        with answering():
            now_ms = self._queues[name].server_time_ms()
        return {"letters": [_line(each, now_ms) for each in found], "passed": following}

    def letter_ids(self, name: str, text: str, passed: int) -> Json:
        """Likewise their ids only, of more letters at a time."""
        most = READS_FOR_IDS * LETTERS
        found, following = self.newest_letters(
            name, passed, most=most, reads=READS_FOR_IDS, wanted=_has(text)
        )
        return {"letters": [each.id for each in found], "passed": following}

    def letter(self, name: str, task_id: str) -> Json | None:
        """One dead letter with its traceback; None if it is none any more."""
        queue = self._queues[name]
        with answering():
            letters, now_ms = queue.letters([task_id], with_payloads=False), queue.server_time_ms()
        return {**letters[0].story, **_line(letters[0], now_ms)} if letters else None

    @contextmanager
    def _changing(self, name: str) -> Iterator[DelayQueue]:
        with super()._changing(name) as queue:
            yield queue
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


def _has(text: str) -> Callable[[Letter], bool]:
    """Whether a letter has this text, upper or lower case alike, where it can be searched."""
    wanted = text.casefold()

    def has(letter: Letter) -> bool:
        story = letter.story
        searched = f"{letter.id}\n{story.get('reason')}\n{story.get('error')}"
        return wanted in searched.casefold()

    return has


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
