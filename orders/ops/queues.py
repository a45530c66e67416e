"""The queues as the page shows them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import redis
import sqlalchemy as sa

from orders.caches import SharedRead
from orders.queues import QUEUE, DeadPosition, LetterSummary, Queues, answering
from worker import DelayQueue, WorkerStatus
from worker.queue.operator_side import LETTERS

Json = dict[str, Any]
Page = tuple[list[Any], DeadPosition | None]

#: How long `ShownQueues.state` is shared by all who ask this process.
FRESH_SECONDS = 1.0
#: How far the chart of due tasks looks ahead.
MINUTES = 30
#: Letters on one page of the list.
MOST = 100
#: How often one page of ids reads the queue's list, `LETTERS` entries at a time.
READS_FOR_IDS = 10


class ShownQueues(Queues):
    """Raises QueueUnavailable from every method while Redis does not answer."""

    def __init__(self, client: redis.Redis, checks: DelayQueue, engine: sa.Engine) -> None:
        super().__init__(client, checks, engine)
        #: Each queue's counts, forecast and workers; or that Redis does not answer.
        self.state = SharedRead(self._read_state, FRESH_SECONDS)

    def _read_state(self) -> Json:
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
        holders = (each.id for each in workers if order_id in each.details.get("held", []))
        return {**state._asdict(), "held_by": next(holders, None)}

    def letters(self, name: str, text: str, after: DeadPosition | None) -> Page:
        """A page of the dead letters that contain this text, newest first, and where it ends."""
        found, end = self.dead_letters(name, after, most=MOST, wanted=_contains(text))
        with answering():
            now_ms = self._queues[name].server_time_ms()
        letters = [
            {**asdict(each), "died_ms_ago": max(0, now_ms - each.died_at_ms)} for each in found
        ]
        return letters, end

    def letter_ids(self, name: str, text: str, after: DeadPosition | None) -> Page:
        """The ids of these letters, on larger pages."""
        most = READS_FOR_IDS * LETTERS
        found, end = self.dead_letters(
            name, after, most=most, reads=READS_FOR_IDS, wanted=_contains(text)
        )
        return [each.id for each in found], end

    def letter(self, name: str, task_id: str) -> Json | None:
        """Why a task is dead, with the traceback; None if it is no longer dead."""
        with answering():
            letters = self._queues[name].letters([task_id], with_payloads=False)
        return dict(letters[0].story) if letters else None

    @contextmanager
    def _changing(self, name: str) -> Iterator[DelayQueue]:
        with super()._changing(name) as queue:
            yield queue
        self.state.forget()


def _queue(queue: DelayQueue) -> Json:
    return {
        "name": queue.name,
        **asdict(queue.stats()),
        "pause": str(queue.find_pause() or ""),
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
        "handled": details.get("handled"),  # workers of earlier versions do not report it
    }


def _contains(text: str) -> Callable[[LetterSummary], bool]:
    """Whether a letter's id, reason or error contains this text, in upper or lower case."""
    wanted = text.casefold()
    return lambda letter: wanted in f"{letter.id}\n{letter.reason}\n{letter.error or ''}".casefold()
