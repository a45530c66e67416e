"""What the methods of a `DelayQueue` take and return, beside tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from ..findings import quantity
from ..flow import Task

#: A worker sends a heartbeat every 20 s. If two are missing, it has died or cannot reach Redis.
SILENT_MS = 45_000


class Scheduled(StrEnum):
    """What `DelayQueue.schedule` did."""

    CREATED = "created"
    RESCHEDULED = "rescheduled"
    UNCHANGED = "unchanged"
    #: It is a dead letter and stays one until you `requeue` or `purge` it.
    DEAD = "dead"


class Cancelled(StrEnum):
    """What `DelayQueue.cancel` found."""

    REMOVED = "removed"
    #: A worker held it, and may still do it, but its lease is void: it is not put back.
    CANCELLING = "cancelling"
    #: It is a dead letter and stays one.
    DEAD = "dead"
    MISSING = "missing"


class Claim(NamedTuple):
    """What a claim returned."""

    tasks: list[Task]
    #: The server's time, ms.
    now_ms: int
    #: Milliseconds until the next task is due or the next lease ends; None if nothing is scheduled or leased.
    next_in_ms: float | None
    paused: bool


class Verb(StrEnum):
    """What becomes of a task that a worker holds. Those from `FAILED` on put it back after a delay."""

    DONE = "done"
    #: A dead letter.
    DEAD = "dead"
    #: It is put back as it was; nothing is counted.
    RELEASED = "released"
    #: It failed; the failure is counted.
    FAILED = "failed"
    #: The same appointment again, with failures and deliveries reset.
    AGAIN = "again"
    #: As `AGAIN`, but a sweep may bring it forward: the records say when it is due.
    NOT_DUE = "not due"
    #: It is done and due again: a new appointment.
    NEW = "new"
    #: The same appointment again; nothing is counted or reset but the attempts.
    LATER = "later"


class Settlement(NamedTuple):
    """What becomes of some tasks, of any claims."""

    #: A dead one is alone, as its letter tells of it.
    tasks: Sequence[Task]
    verb: Verb
    #: From now until it is due again.
    delay_ms: float = 0.0
    #: Why.
    error: BaseException | None = None
    #: Why it is dead, in words.
    reason: str = ""


class Restored(NamedTuple):
    """What `DelayQueue.restore` found and did."""

    #: The tasks that Redis had lost, which are scheduled again.
    lost: tuple[str, ...]
    #: How many are scheduled and already due, so about to be claimed.
    due: int
    paused: bool
    #: Whether it is this worker's turn to sweep; if not, nothing was done, and only ``paused`` was found.
    turn: bool = True
    #: Whether this worker has only just got the turn, so that Redis may have lost data before.
    new_turn: bool = False
    #: Milliseconds until another worker's turn ends, unless that worker extends it.
    turn_in_ms: int = 0


class Seeded(NamedTuple):
    """What `DelayQueue.seed` did."""

    #: Whether this worker's schedule is in force. If not, nothing was done.
    in_force: bool
    #: The occurrences that this call scheduled.
    ids: tuple[str, ...]


class Place(StrEnum):
    """Where a task is."""

    SCHEDULED = "scheduled"
    LEASED = "leased"
    DEAD = "dead"


class TaskState(NamedTuple):
    """Where a task is, and its history so far."""

    place: Place
    #: Milliseconds until it is due, or until its lease ends; negative when that is past. None for a dead task.
    in_ms: int | None
    failures: int
    #: How often its lease has expired.
    deliveries: int
    #: How many attempts came before.
    attempts: int
    #: For how long a worker has held it, ms; and which of the `WorkerStatus.details` "leases" it belongs to.
    held_ms: int = 0
    lease: str = ""
    #: Why it was put back the last time; "" if nothing was wrong.
    error: str = ""

    def __str__(self) -> str:
        """``failed 3 times: OSError: connection refused; next try in 57 s``"""
        failed = f"failed {quantity(self.failures, 'time')}"
        done = failed if self.failures else f"put off {quantity(self.attempts, 'time')}"
        why = f": {self.error}" if self.error else ""
        return f"{done}{why}; next try in {max(0, self.in_ms or 0) / 1000:,.0f} s"


class WorkerStatus(NamedTuple):
    """A worker as it last described itself."""

    id: str
    #: How long ago its last heartbeat came, ms.
    heard_ms_ago: int
    #: host, pid, started_at (RFC 3339), up, holds (how many tasks), held (some of their ids), leases (the beginnings
    #: of their tokens), oldest_seconds (how long the longest call has run)
    details: Mapping[str, Any]

    @property
    def silent(self) -> bool:
        """Whether two heartbeats are missing: the worker has died or cannot reach Redis."""
        return self.heard_ms_ago > SILENT_MS


class Letter(NamedTuple):
    """A dead task, and why it is dead."""

    id: str
    payload: bytes
    #: reason, error, traceback, failures, deliveries, due_at_ms, died_at_ms
    story: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stats:
    """How many tasks are in each place at one moment; times in ms."""

    scheduled: int
    due: int
    due_within_minute: int
    leased: int
    dead: int
    paused: bool
    #: None when nothing is scheduled, 0 when something is due already.
    next_due_in_ms: int | None
    oldest_due_age_ms: int
    #: How long ago the oldest dead letter died; 0 when there is none.
    oldest_dead_age_ms: int = 0
