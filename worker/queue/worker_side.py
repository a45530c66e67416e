"""What claims, settles and restores tasks."""

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import redis

from ..errors import LeaseLost, described, without_statements
from ..flow import MAX_BATCH_SIZE, Due, Task
from .formats import SLICE, checked_id, id_to_bytes, id_to_text, slices, slices_by_size
from .replies import Claim, Put, Restored, Seeded
from .scripted import ScriptedQueue

#: Random bytes; 64 hex characters, the length the scripts cut at.
TOKEN_BYTES = 32
#: How many claims without a reply are remembered and reported to Redis: at least those of the last minute.
MAX_LOST_CLAIMS = 100
#: How many characters of a reason and of an error's message a dead letter keeps.
MAX_TEXT = 2000
#: How many a task keeps that is put back.
MAX_LINE = 200
#: Workers that have sent no heartbeat for this long are removed.
FORGET_WORKERS_MS = 3_600_000
#: How many tasks become dead letters in one call: each takes the server 0.03 ms.
BURIED = 100


class WorkerSide(ScriptedQueue):
    """The methods of a `DelayQueue` for its workers."""

    def _run(
        self, name: str, now_ms: int | None, *args: Any, keys: Sequence[str] | None = None
    ) -> Any:
        asked_at = self.environment.clock()
        try:
            return super()._run(name, now_ms, *args, keys=keys)
        except (redis.ConnectionError, redis.TimeoutError):
            if self.memory.silent_since is None:
                self.memory.silent_since = asked_at
            raise

    def claim(
        self,
        limit: int,
        lease_ms: int,
        *,
        waits_ms: int | None = None,
        relieved: bool = False,
        now_ms: int | None = None,
    ) -> Claim:
        """Lease up to ``limit`` tasks for ``lease_ms``: those whose lease expired, else those due.

        A task whose lease expired counts one more delivery, unless the reply to the claim that leased
        it was lost. Such suspects are claimed a few at a time, and alone after their second expired
        lease. No task is claimed early: due times are compared with the server's clock, rounded down.
        The oldest come first, but in a backlog of more than 1,000 every second claim takes those due last.
        After an outage of Redis, leases that have ended are left to their workers for 2 s.

        Fewer tasks come back if their payloads would be more than 1 MiB together; the first always does.

        With ``waits_ms`` the caller promises that it claims again after ``next_in_ms``, or else after
        ``waits_ms``, sooner if a message of the wake channel says so. Then idle workers share the watch: only two
        are told when the next task is due. ``relieved`` says that another thread of the caller is about to claim.

        Raises ValueError for a limit that is not 1 to 2,000, which is all that the script can hold.
        """
        if not 1 <= limit <= MAX_BATCH_SIZE:
            raise ValueError(f"a claim's limit is 1 to {MAX_BATCH_SIZE}, not {limit}")
        memory, token = self.memory, self.environment.token(TOKEN_BYTES)
        lost = [*memory.lost_claims]
        asked_at_ms = 1000 * self.environment.clock()
        head = (self.keys.wake, limit, math.isqrt(limit), lease_ms, token, memory.claimer)
        watch = (waits_ms or ("0" if memory.shares_watch else ""), "1" if relieved else "")
        known = self._expected(asked_at_ms)
        newest, memory.takes_newest = memory.takes_newest, False
        try:
            paused, now, next_in_us, *fields = self._run(
                "claim", now_ms, *head, *watch, *known, "1" if newest else "", *lost
            )
        except (redis.ConnectionError, redis.TimeoutError):
            memory.lost_claims[token] = None
            for each in [*memory.lost_claims][:-MAX_LOST_CLAIMS]:
                memory.lost_claims.pop(each, None)
            raise
        for each in lost:
            memory.lost_claims.pop(each, None)
        memory.silent_since, memory.shares_watch = None, waits_ms is not None
        if now_ms is None:
            memory.server_ahead_ms = now - asked_at_ms
        memory.paused = bool(paused)
        next_in_ms = None if next_in_us < 0 else next_in_us / 1000
        tasks = _claimed(token, fields)
        memory.takes_newest = bool(tasks) and not newest
        return Claim(tasks, now, next_in_ms, memory.paused)

    def _expected(self, asked_at_ms: float) -> tuple[int | str, int]:
        """When a claim expects to run on the server's clock, and how long Redis has been silent, both ms."""
        ahead_ms, since = self.memory.server_ahead_ms, self.memory.silent_since
        return (
            "" if ahead_ms is None else round(asked_at_ms + ahead_ms),
            0 if since is None else round(asked_at_ms - 1000 * since),
        )

    def ack(self, tasks: Sequence[Task]) -> None:
        """Remove tasks of one claim, because they are done.

        Raises LeaseLost with the ids of those that are no longer this worker's; the others are settled.
        """
        head = [_shared_token(tasks), "1" if any(task.payload for task in tasks) else ""]
        self._settle("ack", None, head, [(task,) for task in tasks])

    def retry(
        self,
        retries: Sequence[tuple[Task, float]],
        put: Put = Put.AGAIN,
        *,
        errors: Mapping[str, BaseException | None] = MappingProxyType({}),
        now_ms: int | None = None,
    ) -> None:
        """Put tasks of one claim back, each due after its own delay in ms from now.

        ``errors`` say why, by the task's id, for `TaskState.error`. Raises LeaseLost as `ack` does.
        """
        head = [self.keys.wake, _shared_token([task for task, _ in retries])]
        rows = [
            (task, math.ceil(delay_ms), put, _quoted(errors.get(task.id)))
            for task, delay_ms in retries
        ]
        self._settle("retry", now_ms, head, rows)

    def extend(self, tasks: Sequence[Task], lease_ms: int, *, now_ms: int | None = None) -> None:
        """Extend the lease on tasks, of any claims, to ``lease_ms`` from now. Raises LeaseLost as `ack` does."""
        rows = [(task, task.token) for task in tasks]
        self._settle("extend", now_ms, [lease_ms], rows)

    def release(self, tasks: Sequence[Task]) -> None:
        """Put tasks of one claim back as they were; nothing is counted. Raises LeaseLost as `ack` does."""
        head = [self.keys.wake, _shared_token(tasks)]
        self._settle("retry", None, head, [(task, 0, "as it was", "") for task in tasks])

    def dead_letter(
        self,
        burials: Sequence[tuple[Task, str, BaseException | None]],
        *,
        now_ms: int | None = None,
    ) -> None:
        """Make dead letters of tasks of one claim, given as (task, reason, error). Raises LeaseLost as `ack` does."""
        rows = [(task, _story(task, reason, error)) for task, reason, error in burials]
        token = _shared_token([task for task, _, _ in burials])
        self._settle("dead_letter", now_ms, [token], rows, size=BURIED)

    def _settle(
        self,
        script: str,
        now_ms: int | None,
        head: list[Any],
        rows: list[tuple[Any, ...]],
        size: int = SLICE,
    ) -> None:
        """Call a script for these rows, each with a task first. Raises LeaseLost for what it returns."""
        lost = list[bytes]()
        for part in slices(rows, size):
            args = (value for task, *rest in part for value in (id_to_bytes(task.id), *rest))
            lost += self._run(script, now_ms, *head, *args)
        if lost:
            raise LeaseLost([*map(id_to_text, lost)])

    def beat(self, worker_id: str, details: Mapping[str, Any]) -> int:
        """Record that a worker is alive, with details of what it is doing. Returns how many are."""
        found: int = self._run("beat", None, worker_id, json.dumps(details), FORGET_WORKERS_MS)
        return found

    def sign_off(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        self._redis.hdel(self.keys.workers, worker_id)
        self._redis.zrem(self.keys.heard, worker_id)
        self._redis.zrem(self.keys.waiting, self.memory.claimer)

    def restore(
        self,
        waiting: Sequence[Due],
        *,
        worker_id: str = "",
        term_ms: int = 0,
        look_only: bool = False,
        now_ms: int | None = None,
    ) -> Restored:
        """Schedule the tasks that Redis does not have; leave leased and dead ones alone.

        A task that is scheduled is moved only if its time is more than 100 ms too late, and not if it was
        postponed after it was due. Does nothing while the queue is paused.

        With a ``worker_id``, that worker gets the turn to sweep for ``term_ms`` from now. If it is
        another worker's turn, nothing is done. With ``look_only``, lost tasks are returned but not
        scheduled.
        """
        found, seen = Restored((), 0, 0, paused=False), 0
        rows = [
            (checked_id(due.id), math.ceil(due.delay_ms), b"" if look_only else due.payload)
            for due in waiting
        ]
        for part in slices_by_size(rows) if rows else [[]]:
            turn, turn_in_ms, paused, overdue, parked, *lost = self._run(
                "restore",
                now_ms,
                self.keys.wake,
                worker_id,
                term_ms,
                "" if look_only else "1",
                *chain.from_iterable(part),
            )
            found = Restored(
                found.lost + tuple(map(id_to_text, lost)),
                found.due + overdue,
                found.parked + (parked if found.parked == seen else 0),
                bool(paused),
                turn > 0,
                found.new_turn or turn == 2,  # noqa: PLR2004  see the script
                turn_in_ms,
            )
            seen += len(part)
        self.memory.paused = found.paused
        return found

    def seed(
        self,
        schedule: str,
        started_at_ms: int,
        upcoming: tuple[str, int],
        expected: tuple[str, int] | None = None,
        *,
        now_ms: int | None = None,
    ) -> Seeded:
        """Schedule the ``upcoming`` occurrence of a recurring task, an (id, due_at_ms), once.

        An occurrence is never scheduled a second time, unless Redis has lost everything. In that case
        ``expected`` is scheduled too. Pass the last occurrence that the caller knows was scheduled, if its
        time has come and the caller does not hold it.

        If workers have different schedules, that of the worker that started last is in force;
        ``started_at_ms`` is when the caller started, on the server's clock. Occurrences of the other
        schedules that are not due yet are removed.
        """
        rows = [*upcoming, *(expected or ())]
        in_force, *ids = self._run("seed", now_ms, started_at_ms, schedule, *rows)
        return Seeded(bool(in_force), tuple(map(id_to_text, ids)))

    def resign(self, worker_id: str) -> None:
        """Give up the turn to sweep, if it is this worker's."""
        self._run("resign", None, worker_id)


def _claimed(token: str, fields: Sequence[Any]) -> list[Task]:
    """The tasks in the reply of `claim.lua`."""
    return [
        Task(
            id_to_text(task_id),
            payload or b"",
            failures,
            deliveries,
            int(due),
            token,
            attempts + 1,
            int(appointment),
        )
        for task_id, payload, due, appointment, failures, deliveries, attempts in zip(
            *(fields[column::7] for column in range(7)), strict=True
        )
    ]


def _shared_token(tasks: Sequence[Task]) -> str:
    """The token that tasks of one claim share."""
    tokens = {task.token for task in tasks}
    if len(tokens) > 1:
        raise ValueError("tasks of several claims cannot be settled in one call")
    return tokens.pop() if tokens else ""


def _quoted(error: BaseException | None) -> str:
    """The first line of an error, without a space; "" if there is none."""
    return quote(described(error).partition("\n")[0][:MAX_LINE], errors="replace") if error else ""


def _traceback(error: BaseException) -> str:
    return without_statements("".join(traceback.format_exception(error)))


def _story(task: Task, reason: str, error: BaseException | None) -> str:
    story = {
        "reason": reason[:MAX_TEXT],
        "error": described(error)[:MAX_TEXT] if error else None,
        # The end matters most: what was raised, and where.
        "traceback": _traceback(error)[-4000:] if error else None,
        "failures": task.failures,
        "deliveries": task.deliveries,
        "due_at_ms": task.due_at_ms,
    }
    return json.dumps(story)
