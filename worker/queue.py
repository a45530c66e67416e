"""A delay queue in Redis: one method for each script in ``lua/``.

The keys of a queue share one hash tag, so that a cluster keeps them together::

    {name}:scheduled   zset    task id -> due time, ms
    {name}:leased      zset    task id -> lease expiry, ms
    {name}:dead        list    task ids, newest first
    {name}:letters     hash    task id -> why it is dead, JSON; what counts as being dead
    {name}:payloads    hash    task id -> opaque bytes, for tasks that have any
    {name}:tokens      hash    task id -> token of its lease, and when the task was first due, ms
    {name}:failures    hash    task id -> times it failed alone
    {name}:deliveries  hash    task id -> times its lease expired
    {name}:first_due   hash    task id -> when it was first due, ms, for tasks put back
    {name}:paused      string  present while the queue is paused
    {name}:wake        channel a message when something is due earlier than it was

A task is in exactly one of scheduled, leased and dead::

                     schedule                 claim
                  ------------> scheduled ------------> leased ------> gone
                                  ^  ^ ^                | | |    ack    (extend: leased for longer)
                                  |  | '--- release ----' | |
                                  |  '------ retry -------' |
                                  |                         | dead_letter
                                  '------- requeue ------ dead ------> gone
                                                                purge

Time is the server's: scripts read it with TIME unless a test passes ``now_ms``. It is rounded
down to milliseconds and due times are rounded up, so nothing is ever early.
"""

import json
import math
import re
import secrets
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import redis
from redis.commands.core import Script

from worker.errors import LeaseLost, UnsafeServer, described
from worker.flow import MAX_BATCH_SIZE, Due, Task

T = TypeVar("T")

#: Scripts work on this many tasks at most, so that none holds the server up for long; a claim, on
#: as many as it is asked for, up to `MAX_BATCH_SIZE`.
SLICE = 500
#: As text, twice as long; the scripts count on that.
TOKEN_BYTES = 32
#: Due times are zset scores, which are doubles: whole up to here.
MAX_DUE_AT_MS = 2**53 - 1


class Scheduled(StrEnum):
    """What `DelayQueue.schedule` did."""

    CREATED = "created"
    RESCHEDULED = "rescheduled"
    UNCHANGED = "unchanged"


class Cancelled(StrEnum):
    """What `DelayQueue.cancel` found."""

    REMOVED = "removed"
    LEASED = "leased"
    MISSING = "missing"


class Claim(NamedTuple):
    """What a claim brought."""

    tasks: list[Task]
    #: Milliseconds until the next task is due or the next lease ends; None: nothing waits.
    next_in_ms: float | None
    paused: bool


class Restored(NamedTuple):
    """What `DelayQueue.restore` found and did."""

    #: How many had been lost and are scheduled again.
    restored: int
    #: How many are leased, or due and about to be.
    pending: int
    paused: bool


class Letter(NamedTuple):
    """A dead task, and why it is dead."""

    id: str
    payload: bytes
    #: reason, error, traceback, failures, deliveries, due_at_ms, died_at_ms
    story: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stats:
    """How many tasks are where, in one moment. Times are in ms."""

    scheduled: int
    due: int
    due_within_minute: int
    leased: int
    dead: int
    paused: bool
    #: None when nothing is scheduled, 0 when something is due already.
    next_due_in_ms: int | None
    oldest_due_age_ms: int


class Keys:
    """The name of every key, spelled here and nowhere else."""

    def __init__(self, name: str) -> None:
        self.scheduled = f"{{{name}}}:scheduled"
        self.leased = f"{{{name}}}:leased"
        self.dead = f"{{{name}}}:dead"
        self.letters = f"{{{name}}}:letters"
        self.payloads = f"{{{name}}}:payloads"
        self.tokens = f"{{{name}}}:tokens"
        self.failures = f"{{{name}}}:failures"
        self.deliveries = f"{{{name}}}:deliveries"
        self.first_due = f"{{{name}}}:first_due"
        self.paused = f"{{{name}}}:paused"
        self.wake = f"{{{name}}}:wake"


class DelayQueue:
    """The queue called ``name`` on ``client``, for any number of threads and processes.

    Every method raises `redis.RedisError` when the server does not do what was asked. Raises
    ValueError for a client that decodes responses.
    """

    def __init__(self, client: redis.Redis, name: str) -> None:
        if isinstance(client, redis.Redis) and client.get_encoder().decode_responses:
            raise ValueError("payloads are bytes: the client must not have decode_responses=True")
        self.name = name
        self.keys = Keys(name)
        #: Whether the queue was paused when a claim or sweep last asked; kept while Redis is away.
        self.last_known_paused = False
        self._redis = client
        self._scripts: dict[str, Script] = {}
        self._script_keys: dict[str, list[str]] = {}
        for file in (files("worker") / "lua").iterdir():
            script, text = file.name.removesuffix(".lua"), file.read_text()
            self._scripts[script] = Script(client, text.encode())
            # A script's header says which keys it takes; this is where it is believed.
            header = re.findall(r"^-- KEYS\[\d+\] (\w+)", text, re.MULTILINE)
            self._script_keys[script] = [getattr(self.keys, key) for key in header]

    def _run(self, script: str, *args: Any) -> Any:
        return self._scripts[script](keys=self._script_keys[script], args=args)

    # -- putting in and taking out ---------------------------------------------------------

    def schedule(
        self, task_id: str, due_at_ms: float, payload: bytes = b"", *, only_if_absent: bool = False
    ) -> Scheduled:
        """Schedule one task; see `schedule_many`."""
        return self.schedule_many([(task_id, due_at_ms, payload)], only_if_absent=only_if_absent)[0]

    def schedule_many(
        self, tasks: Iterable[tuple[str, float, bytes]], *, only_if_absent: bool = False
    ) -> list[Scheduled]:
        """Schedule tasks given as (id, due_at_ms, payload), and say what became of each.

        A known id moves to the new time, with the new payload and its counts reset; when a
        worker holds it, that worker's lease is void. With ``only_if_absent`` a known id stays
        as it is. A dead id always does: `requeue` is what brings it back.

        Raises ValueError for an id or a due time that cannot be stored.
        """
        answers: list[Scheduled] = []
        for part in _slices([*map(_checked, tasks)]):
            reply = self._run(
                "schedule",
                self.keys.wake,
                int(only_if_absent),
                *(value for task in part for value in task),
            )
            answers += [Scheduled(answer.decode()) for answer in reply]
        return answers

    def restore(self, waiting: Sequence[Due], *, now_ms: int | None = None) -> Restored:
        """Schedule those tasks that are in no place; leave leased and dead ones alone.

        A scheduled one is only ever brought forward, and only before its first claim. Does
        nothing while the queue is paused.
        """
        restored = pending = 0
        for part in _slices(waiting):
            paused, *counts = self._run(
                "restore",
                _clock(now_ms),
                self.keys.wake,
                *(value for due in part for value in (_bytes(due.id), math.ceil(due.delay_ms))),
            )
            self.last_known_paused = bool(paused)
            restored += counts[0]
            pending += counts[1]
        return Restored(restored, pending, self.last_known_paused)

    def cancel(self, task_id: str) -> Cancelled:
        """Take one task off the schedule; see `cancel_many`."""
        return self.cancel_many([task_id])[0]

    def cancel_many(self, ids: Iterable[str]) -> list[Cancelled]:
        """Take waiting tasks off the schedule, and say of each what was found.

        One that a worker holds is left to it.
        """
        answers: list[Cancelled] = []
        for part in _slices([_bytes(task_id) for task_id in ids]):
            answers += [Cancelled(answer.decode()) for answer in self._run("cancel", *part)]
        return answers

    # -- a worker's side -------------------------------------------------------------------

    def claim(self, limit: int, lease_ms: int, *, now_ms: int | None = None) -> Claim:
        """Lease up to ``limit`` tasks: those whose lease expired, then those that are due.

        A task found under an expired lease counts one more delivery. Never early: a due time
        is compared with the server's clock, rounded down.

        Raises ValueError for a limit that is not 1 to `MAX_BATCH_SIZE`: the script would fail
        halfway, and lose what it had taken.
        """
        if not 1 <= limit <= MAX_BATCH_SIZE:
            raise ValueError(f"a claim's limit is 1 to {MAX_BATCH_SIZE}, not {limit}")
        token = secrets.token_hex(TOKEN_BYTES)
        paused, next_in_us, *fields = self._run("claim", _clock(now_ms), limit, lease_ms, token)
        self.last_known_paused = bool(paused)
        tasks = [
            Task(
                _text(task_id),
                payload or b"",
                int(failures or 0),
                int(deliveries or 0),
                int(first_due),
                token,
            )
            for task_id, payload, failures, deliveries, first_due in zip(
                *(fields[column::5] for column in range(5)), strict=True
            )
        ]
        next_in_ms = None if next_in_us < 0 else next_in_us / 1000
        return Claim(tasks, next_in_ms, self.last_known_paused)

    def ack(self, tasks: Sequence[Task]) -> None:
        """Forget tasks of one claim: they are done.

        Raises LeaseLost with those that are no longer this worker's; the others are settled.
        """
        self._settle("ack", [_token(tasks)], [(task.id,) for task in tasks])

    def retry(
        self,
        retries: Sequence[tuple[Task, float]],
        *,
        failed: bool = False,
        now_ms: int | None = None,
    ) -> None:
        """Put tasks of one claim back, each due after its own delay in ms from now.

        ``failed`` counts a failure for each. Otherwise it is a new appointment and counts as
        nothing. Raises LeaseLost as `ack` does.
        """
        self._settle(
            "retry",
            [_clock(now_ms), self.keys.wake, _token([task for task, _ in retries])],
            [(task.id, math.ceil(delay), int(failed)) for task, delay in retries],
        )

    def extend(self, tasks: Sequence[Task], lease_ms: int, *, now_ms: int | None = None) -> None:
        """Hold tasks of one claim for ``lease_ms`` from now. Raises LeaseLost as `ack` does."""
        head = [_clock(now_ms), lease_ms, _token(tasks)]
        self._settle("extend", head, [(task.id,) for task in tasks])

    def release(self, tasks: Sequence[Task]) -> None:
        """Give tasks of one claim back as they were. Raises LeaseLost as `ack` does."""
        self._settle("release", [self.keys.wake, _token(tasks)], [(task.id,) for task in tasks])

    def dead_letter(
        self,
        burials: Sequence[tuple[Task, str, BaseException | None]],
        *,
        now_ms: int | None = None,
    ) -> None:
        """Bury tasks of one claim, given as (task, reason, error). Raises LeaseLost as `ack` does."""
        self._settle(
            "dead_letter",
            [_clock(now_ms), _token([task for task, _, _ in burials])],
            [(task.id, _letter(task, reason, error)) for task, reason, error in burials],
        )

    def _settle(self, script: str, head: list[Any], rows: list[tuple[Any, ...]]) -> None:
        lost: list[bytes] = []
        for part in _slices(rows):
            args = (value for task_id, *rest in part for value in (_bytes(task_id), *rest))
            lost += self._run(script, *head, *args)
        if lost:
            raise LeaseLost(map(_text, lost))

    # -- an operator's side ----------------------------------------------------------------

    def dead(self, limit: int = 100, offset: int = 0) -> list[Letter]:
        """Dead letters, newest first."""
        entries = _list(self._redis.lrange(self.keys.dead, offset, offset + limit - 1))
        ids = [*dict.fromkeys(entries)]
        if not ids:
            return []
        stories = _list(self._redis.hmget(self.keys.letters, ids))
        payloads = _list(self._redis.hmget(self.keys.payloads, ids))
        return [
            Letter(_text(task_id), payload or b"", json.loads(story))
            for task_id, story, payload in zip(ids, stories, payloads, strict=True)
            if story is not None
        ]

    def requeue(self, ids: Iterable[str], *, now_ms: int | None = None) -> list[str]:
        """Schedule dead tasks again, due now, with their counts reset. Returns those it found."""
        return self._disinter("requeue", [_clock(now_ms), self.keys.wake], ids)

    def purge(self, ids: Iterable[str]) -> list[str]:
        """Delete dead tasks for good. Returns those it found."""
        return self._disinter("purge", [], ids)

    def _disinter(self, script: str, head: list[Any], ids: Iterable[str]) -> list[str]:
        found: list[str] = []
        for part in _slices([_bytes(task_id) for task_id in ids], size=100):
            found += map(_text, self._run(script, *head, *part))
        return found

    def dead_ids(self) -> Iterator[list[str]]:
        """The ids that are dead now, oldest first, in slices to `requeue` or `purge` on the way."""
        left = _int(self._redis.llen(self.keys.dead))
        while left > 0:
            entries = _list(self._redis.lrange(self.keys.dead, -min(left, 100), -1))
            if not entries:
                return
            left -= len(entries)
            yield [_text(task_id) for task_id in reversed(entries)]

    def stats(self, *, now_ms: int | None = None) -> Stats:
        """Count what is where, in one moment."""
        scheduled, due, within_minute, leased, dead, paused, next_due = self._run(
            "stats", _clock(now_ms)
        )
        return Stats(
            scheduled=scheduled,
            due=due,
            due_within_minute=within_minute,
            leased=leased,
            dead=dead,
            paused=bool(paused),
            next_due_in_ms=None if next_due is None else max(0, next_due),
            oldest_due_age_ms=max(0, -(next_due or 0)),
        )

    def pause(self) -> None:
        """Make claims return nothing and sweeps do nothing, in every worker, until `resume`."""
        self._redis.set(self.keys.paused, b"1")

    def resume(self) -> None:
        """End a pause and wake the workers."""
        self._redis.delete(self.keys.paused)
        self.wake()

    def wake(self) -> None:
        """Have every waiting worker look again."""
        self._redis.publish(self.keys.wake, b"")

    def check_server(self) -> list[str]:
        """Make sure that this server deletes nothing on its own; return warnings.

        Raises UnsafeServer when its eviction policy may delete the queue.
        """
        warnings = []
        try:
            memory: Any = self._redis.info("memory")
            persistence: Any = self._redis.info("persistence")
        except redis.ResponseError as error:
            return [f"INFO was refused ({error}), so the eviction policy is not known"]
        policy = memory.get("maxmemory_policy")
        if policy is None:
            warnings.append("the server does not tell its eviction policy")
        elif policy != "noeviction":
            raise UnsafeServer(
                f"Its maxmemory-policy is {policy}, which may evict whole queues: "
                "set it to noeviction."
            )
        if not persistence.get("aof_enabled"):
            warnings.append("appendonly is off: a restart of Redis loses what it held")
        return warnings


def _slices(rows: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _checked(task: tuple[str, float, bytes]) -> tuple[bytes, int, bytes]:
    task_id, due_at_ms, payload = task
    if not task_id:
        raise ValueError("a task id is not empty")
    if not 0 <= due_at_ms <= MAX_DUE_AT_MS:  # false for NaN and infinity too
        raise ValueError(f"due_at_ms is from 0 to 2**53 - 1, not {due_at_ms}")
    return _bytes(task_id), math.ceil(due_at_ms), payload


def _token(tasks: Sequence[Task]) -> str:
    """The token that tasks of one claim share."""
    tokens = {task.token for task in tasks}
    if len(tokens) > 1:
        raise ValueError("tasks of one claim are settled together, not of several")
    return tokens.pop() if tokens else ""


def _letter(task: Task, reason: str, error: BaseException | None) -> str:
    story = {
        "reason": reason,
        "error": described(error)[:2000] if error else None,
        # Its end says most: what was raised, and where.
        "traceback": "".join(traceback.format_exception(error))[-4000:] if error else None,
        "failures": task.failures,
        "deliveries": task.deliveries,
        "due_at_ms": task.due_at_ms,
    }
    return json.dumps(story)


def _clock(now_ms: int | None) -> int | str:
    return "" if now_ms is None else now_ms


def _bytes(task_id: str) -> bytes:
    return task_id.encode(errors="surrogateescape")


def _text(task_id: bytes) -> str:
    """Any bytes at all: somebody else may have written them."""
    return task_id.decode(errors="surrogateescape")


def _list(reply: Any) -> list[Any]:
    """redis-py types each reply as a value or an awaitable; on this client it is the value."""
    return list(reply)


def _int(reply: Any) -> int:
    return int(reply)
