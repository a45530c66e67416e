"""A delay queue in Redis: a script in ``lua/`` for each transition.

A task is in exactly one of scheduled, leased and dead::

                     schedule                 claim
                  ------------> scheduled ------------> leased ------> gone
                                  ^  ^                  | |  settle    (extend: leased for longer)
                                  |  '-settle, redeliver' |
                                  |                       | settle
                                  '------ requeue ------ dead ------> gone
                                                                purge

Time is the server's: scripts read it with TIME unless a test passes ``now_ms``. It is rounded
down to milliseconds and due times are rounded up, so nothing is ever early.
"""

from collections.abc import Iterable
from itertools import chain

from ..flow import Due
from .formats import ids_to_bytes, row_of, slices, slices_by_size, task_to_schedule
from .operator_side import OperatorSide
from .replies import Cancelled, Scheduled
from .worker_side import WorkerSide


class DelayQueue(WorkerSide, OperatorSide):
    """The queue ``name`` on ``client``, for any number of threads and processes::

        queue = DelayQueue(connect("redis://localhost:6379/0"), "reminders")
        queue.schedule("visit-7", delay_ms=86_400_000, payload=b"ada@example.org")
        queue.cancel("visit-7")

    Every method raises `redis.RedisError` when the server does not do what was asked. The constructor
    raises ValueError for a client that decodes responses.
    """

    def schedule(
        self,
        task_id: str,
        due_at_ms: float | None = None,
        payload: bytes = b"",
        *,
        delay_ms: float | None = None,
        now_ms: int | None = None,
    ) -> Scheduled:
        """Schedule one task, at a time or after a delay; see `schedule_many`::

            queue.schedule("order-1", 1_900_000_000_000)
            queue.schedule("order-2", delay_ms=30_000, payload=b"...")

        A task that is scheduled already moves to the new time, with the new payload.

        Raises ValueError unless exactly one of ``due_at_ms`` and ``delay_ms`` is given.
        """
        task = task_to_schedule(task_id, due_at_ms, payload, delay_ms)
        return self.schedule_many([task], now_ms=now_ms)[0]

    def schedule_many(
        self,
        tasks: Iterable[tuple[str, float, bytes] | Due],
        *,
        now_ms: int | None = None,
    ) -> list[Scheduled]:
        """Schedule tasks, each (id, due_at_ms, payload) or a `Due`; return the result for each.

        The delay of a `Due` counts from now on the server's clock, so this machine's clock does not
        matter. A fraction of a millisecond is rounded up.

        A known id moves to the new time, with the new payload and with its counts reset; if a
        worker holds it, that worker's lease is void. A dead task stays dead: only `requeue` brings it back.

        Raises ValueError for an id, a due time or a delay that cannot be stored.
        """
        answers = list[Scheduled]()
        for part in slices_by_size([*map(row_of, tasks)]):
            reply = self._run("schedule", now_ms, *chain.from_iterable(part))
            answers += [Scheduled(each.decode()) for each in reply]
        return answers

    def cancel(self, task_id: str) -> Cancelled:
        """Take one task off the schedule; see `cancel_many`."""
        return self.cancel_many([task_id])[0]

    def cancel_many(self, ids: Iterable[str]) -> list[Cancelled]:
        """Take waiting tasks off the schedule; return what was found for each.

        A task that a worker holds is left to that worker; it is not put back if it is not done.
        """
        answers = list[Cancelled]()
        for part in slices(ids_to_bytes(ids)):
            reply = self._run("cancel", None, *part)
            answers += [Cancelled(each.decode()) for each in reply]
        return answers
