"""The tasks that this process has postponed, for a sweep that cannot ask Redis."""

import math
from collections.abc import Iterable

from ..queue.environment import Clock

#: With more postponed tasks than this, those whose time has come are removed.
TIDY_ABOVE = 1000
#: How many postponed tasks are kept at most: dead ones stay until this process handles them again.
MAX_POSTPONED = 100_000


class Postponed:
    """Tasks that this process has postponed. While Redis is down, its sweep can only ask here.

    Times are on the monotonic clock. Any thread may use it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._full = TIDY_ABOVE

    def add(self, task_id: str, until: float) -> None:
        self._until[task_id] = until
        self._since[task_id] = math.inf if until == math.inf else self._clock()
        if len(self._until) > self._full:
            self._tidy()
            self._full = max(TIDY_ABOVE, 2 * len(self._until))

    def discard(self, ids: Iterable[str]) -> None:
        if self._until:
            for task_id in ids:
                self._until.pop(task_id, None)
                self._since.pop(task_id, None)

    def covers(self, task_id: str, due_at: float) -> bool:
        """Whether a task is postponed that is due at ``due_at`` by its records.

        If it became due only after it was postponed, the records have a new time for it, which takes
        precedence, as in restore.lua. A dead task stays dead.
        """
        return task_id in self and due_at <= self._since.get(task_id, math.inf)

    def __contains__(self, task_id: str) -> bool:
        return self._until.get(task_id, 0.0) > self._clock()

    def _tidy(self) -> None:
        now = self._clock()
        self.discard([task_id for task_id, until in [*self._until.items()] if until <= now])
        self.discard([*self._until][:-MAX_POSTPONED])
