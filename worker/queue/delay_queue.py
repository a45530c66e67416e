"""A delay queue in Redis: one method for each script in ``lua/``.

The keys of a queue share one hash tag, so that a cluster keeps them together::

    {name}:scheduled    zset    task id -> due time, ms
    {name}:leased       zset    task id -> lease expiry, ms
    {name}:dead         list    task ids, newest first
    {name}:letters      hash    task id -> why it is dead, JSON; a task is dead if it has an entry here
    {name}:payloads     hash    task id -> opaque bytes, for tasks with a payload
    {name}:tokens       hash    task id -> token of its lease and a record of its attempts, for tasks
                                that were claimed: lua/include/attempts.lua lists the fields
    {name}:lost_claims  zset    token of a claim whose reply was lost -> when to forget it, ms
    {name}:alone        string  id of the suspect that was last claimed alone
    {name}:paused       string  present while the queue is paused
    {name}:resumed      string  present after a resume, to tell it from a flush
    {name}:sweeper      string  which worker sweeps, and until when
    {name}:seeded       zset    occurrence of a recurring task -> due time, ms: the last hundred that were scheduled
    {name}:recurrence   string  the cron schedule, when its worker started, and until when it is in force
    {name}:workers      hash    worker id -> when it was last heard from, and what it holds
    {name}:wake         channel a message when something is due earlier than before

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
import secrets
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, compress, takewhile
from typing import Any, NamedTuple, TypeVar

import redis
from redis.commands.core import Script

from ..errors import LeaseLost, UnsafeServer, described
from ..flow import MAX_BATCH_SIZE, Due, Task, checked_delay
from .scripts import ScriptFile, scripts

T = TypeVar("T")

#: Scripts work on at most this many tasks, so that none blocks the server for long. The exception is a
#: claim, which takes up to `MAX_BATCH_SIZE`.
SLICE = 500
#: Random bytes; 64 hex characters, the length the scripts cut at.
TOKEN_BYTES = 32
#: How many claims without a reply are remembered and reported to Redis: at least those of the last minute.
MAX_LOST_CLAIMS = 100
#: Workers that have sent no heartbeat for this long are removed.
FORGET_WORKERS_MS = 3_600_000
#: A worker sends a heartbeat every 20 s. If two are missing, it has died or cannot reach Redis.
SILENT_MS = 45_000
#: How many dead letters are read at a time.
LETTERS = 100
#: How many dead letters are removed at a time. Fewer, because for one in the middle of the list 2,000
#: entries are searched, which takes 70 us; while Redis rewrites its file, each memory page is copied on its
#: first write, too.
REMOVED = 25
#: These limits keep a forecast and an inspection from blocking the server for more than a few milliseconds.
MAX_INTERVALS = 1000
MAX_SAMPLE = 500
#: Due times are zset scores, which are doubles: exact integers up to here.
MAX_DUE_AT_MS = 2**53 - 1


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
    #: A worker holds it: it may still be done, but it is not put back.
    CANCELLING = "cancelling"
    #: It is a dead letter and stays one.
    DEAD = "dead"
    MISSING = "missing"


class Claim(NamedTuple):
    """What a claim returned."""

    tasks: list[Task]
    #: The server's time, ms.
    now_ms: int
    #: Milliseconds until the next task is due or the next lease ends; None if tasks were claimed, or if
    #: nothing is scheduled or leased.
    next_in_ms: float | None
    paused: bool


class Put(StrEnum):
    """How `DelayQueue.retry` puts a task back."""

    #: It failed; the failure is counted.
    FAILED = "failed"
    #: The same appointment again, with failures and deliveries reset.
    AGAIN = "again"
    #: It is done and due again: a new appointment.
    NEW = "new"


class Restored(NamedTuple):
    """What `DelayQueue.restore` found and did."""

    #: The tasks that Redis had lost, which are scheduled again.
    lost: tuple[str, ...]
    #: How many are scheduled and already due, so about to be claimed.
    due: int
    #: How many tasks at the beginning are parked: dead, or postponed by their handler or backoff.
    parked: int
    paused: bool
    #: Whether it is this worker's turn to sweep; if not, nothing was done.
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


class WorkerStatus(NamedTuple):
    """A worker as it last described itself."""

    id: str
    #: How long ago its last heartbeat came, ms.
    heard_ms_ago: int
    #: host, pid, started_at (RFC 3339), up, holds (how many tasks), held (some of their ids),
    #: oldest_seconds (how long the longest call has run), handled (tasks since it started), lateness (of the
    #: handled tasks: pairs of an upper bound in ms, or None for no bound, and a count; a batch counts as late
    #: as its latest task)
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


class Keys:
    """The name of every Redis key, spelled only here."""

    def __init__(self, name: str) -> None:
        self.scheduled = f"{{{name}}}:scheduled"
        self.leased = f"{{{name}}}:leased"
        self.dead = f"{{{name}}}:dead"
        self.letters = f"{{{name}}}:letters"
        self.payloads = f"{{{name}}}:payloads"
        self.tokens = f"{{{name}}}:tokens"
        self.lost_claims = f"{{{name}}}:lost_claims"
        self.alone = f"{{{name}}}:alone"
        self.paused = f"{{{name}}}:paused"
        self.resumed = f"{{{name}}}:resumed"
        self.sweeper = f"{{{name}}}:sweeper"
        self.seeded = f"{{{name}}}:seeded"
        self.recurrence = f"{{{name}}}:recurrence"
        self.workers = f"{{{name}}}:workers"
        self.wake = f"{{{name}}}:wake"

    def of(self, script: ScriptFile) -> list[str]:
        """The keys that a script takes, in the script's order."""
        return [getattr(self, key) for key in script.keys]

    def stored(self) -> list[str]:
        """All but the wake channel, which is not a key."""
        return [key for key in vars(self).values() if key != self.wake]


class DelayQueue:
    """The queue ``name`` on ``client``, for any number of threads and processes::

        queue = DelayQueue(connect("redis://localhost:6379/0"), "reminders")
        queue.schedule("visit-7", delay_ms=86_400_000, payload=b"ada@example.org")
        queue.cancel("visit-7")

    Every method raises `redis.RedisError` when the server does not do what was asked. The constructor
    raises ValueError for a client that decodes responses.
    """

    def __init__(self, client: redis.Redis, name: str) -> None:
        if isinstance(client, redis.Redis):
            refuse_decoding(client)
        self.name = name
        self.keys = Keys(name)
        #: Whether the queue was paused when a claim or a sweep last asked; kept while Redis does not answer.
        self.last_known_paused = False
        self._redis = client
        self._scripts: dict[str, tuple[Script, list[str]]] = {
            file.name: (Script(client, file.text.encode()), self.keys.of(file))
            for file in scripts()
        }
        #: Tokens of claims that got no reply: no worker holds the tasks that they may have leased.
        self._lost_claims: dict[str, None] = {}

    def _run(self, name: str, now_ms: int | None, *args: Any) -> Any:
        script, keys = self._scripts[name]
        return script(keys=keys, args=["" if now_ms is None else now_ms, *args])

    # -- scheduling and cancelling ---------------------------------------------------------

    def schedule(
        self,
        task_id: str,
        due_at_ms: float | None = None,
        payload: bytes = b"",
        *,
        delay_ms: float | None = None,
        only_if_absent: bool = False,
        now_ms: int | None = None,
    ) -> Scheduled:
        """Schedule one task, at a time or after a delay; see `schedule_many`::

            queue.schedule("order-1", 1_900_000_000_000)
            queue.schedule("order-2", delay_ms=30_000, payload=b"...")

        A task that is scheduled already moves to the new time, with the new payload.

        Raises ValueError unless exactly one of ``due_at_ms`` and ``delay_ms`` is given.
        """
        task = task_to_schedule(task_id, due_at_ms, payload, delay_ms)
        return self.schedule_many([task], only_if_absent=only_if_absent, now_ms=now_ms)[0]

    def schedule_many(
        self,
        tasks: Iterable[tuple[str, float, bytes] | Due],
        *,
        only_if_absent: bool = False,
        now_ms: int | None = None,
    ) -> list[Scheduled]:
        """Schedule tasks, each (id, due_at_ms, payload) or a `Due`; return the result for each.

        The delay of a `Due` counts from now on the server's clock, so this machine's clock does not
        matter. A fraction of a millisecond is rounded up.

        A known id moves to the new time, with the new payload and with its counts reset; if a
        worker holds it, that worker's lease is void. With ``only_if_absent`` a known id stays
        as it is. A dead task always stays dead: only `requeue` brings it back.

        Raises ValueError for an id, a due time or a delay that cannot be stored.
        """
        answers: list[Scheduled] = []
        for args in schedule_args(self.keys, tasks, only_if_absent=only_if_absent):
            answers += scheduled_in(self._run("schedule", now_ms, *args))
        return answers

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
        for part in _slices(waiting) if waiting else [[]]:
            rows = (
                value
                for due in part
                for value in (_id(due.id), math.ceil(due.delay_ms), due.payload)
            )
            turn, turn_in_ms, paused, overdue, parked, *lost = self._run(
                "restore",
                now_ms,
                self.keys.wake,
                worker_id,
                term_ms,
                "" if look_only else "1",
                "1" if self.last_known_paused else "",
                *rows,
            )
            found = Restored(
                found.lost + tuple(map(_text, lost)),
                found.due + overdue,
                found.parked + (parked if found.parked == seen else 0),
                bool(paused),
                turn > 0,
                found.new_turn or turn == 2,  # noqa: PLR2004  see the script
                turn_in_ms,
            )
            seen += len(part)
        if found.turn:
            self.last_known_paused = found.paused
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
        return Seeded(bool(in_force), tuple(map(_text, ids)))

    def resign(self, worker_id: str) -> None:
        """Give up the turn to sweep, if it is this worker's."""
        self._run("resign", None, worker_id)

    def cancel(self, task_id: str) -> Cancelled:
        """Take one task off the schedule; see `cancel_many`."""
        return self.cancel_many([task_id])[0]

    def cancel_many(self, ids: Iterable[str]) -> list[Cancelled]:
        """Take waiting tasks off the schedule; return what was found for each.

        A task that a worker holds is left to that worker; it is not put back if it is not done.
        """
        answers: list[Cancelled] = []
        for args in cancel_args(ids):
            answers += cancelled_in(self._run("cancel", None, *args))
        return answers

    # -- a worker's side -------------------------------------------------------------------

    def claim(self, limit: int, lease_ms: int, *, now_ms: int | None = None) -> Claim:
        """Lease up to ``limit`` tasks for ``lease_ms``: those whose lease expired, else those due.

        A task whose lease expired counts one more delivery, unless the reply to the claim that leased
        it was lost. Such suspects are claimed a few at a time, and alone after their second expired
        lease. No task is claimed early: due times are compared with the server's clock, rounded down.

        Raises ValueError for a limit that is not 1 to 2,000: the script would fail halfway and lose
        the tasks it had taken.
        """
        if not 1 <= limit <= MAX_BATCH_SIZE:
            raise ValueError(f"a claim's limit is 1 to {MAX_BATCH_SIZE}, not {limit}")
        token = secrets.token_hex(TOKEN_BYTES)
        lost = [*self._lost_claims]
        try:
            paused, now, next_in_us, *fields = self._run(
                "claim",
                now_ms,
                limit,
                math.isqrt(limit),
                lease_ms,
                token,
                "1" if self.last_known_paused else "",
                *lost,
            )
        except (redis.ConnectionError, redis.TimeoutError):
            self._lost_claims[token] = None
            for each in [*self._lost_claims][:-MAX_LOST_CLAIMS]:
                self._lost_claims.pop(each, None)
            raise
        for each in lost:
            self._lost_claims.pop(each, None)
        self.last_known_paused = bool(paused)
        tasks = [
            Task(
                _text(task_id),
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
        next_in_ms = None if next_in_us < 0 else next_in_us / 1000
        return Claim(tasks, now, next_in_ms, self.last_known_paused)

    def ack(self, tasks: Sequence[Task]) -> None:
        """Remove tasks of one claim, because they are done.

        Raises LeaseLost with the ids of those that are no longer this worker's; the others are settled.
        """
        self._settle("ack", None, [_token(tasks)], [(task.id,) for task in tasks])

    def retry(
        self,
        retries: Sequence[tuple[Task, float]],
        put: Put = Put.AGAIN,
        *,
        now_ms: int | None = None,
    ) -> None:
        """Put tasks of one claim back, each due after its own delay in ms from now.

        Raises LeaseLost as `ack` does.
        """
        head = [self.keys.wake, _token([task for task, _ in retries])]
        rows = [(task.id, math.ceil(delay_ms), put) for task, delay_ms in retries]
        self._settle("retry", now_ms, head, rows)

    def extend(self, tasks: Sequence[Task], lease_ms: int, *, now_ms: int | None = None) -> None:
        """Extend the lease on tasks of one claim to ``lease_ms`` from now. Raises LeaseLost as `ack` does."""
        self._settle("extend", now_ms, [_token(tasks), lease_ms], [(task.id,) for task in tasks])

    def release(self, tasks: Sequence[Task]) -> None:
        """Put tasks of one claim back as they were; nothing is counted. Raises LeaseLost as `ack` does."""
        head = [self.keys.wake, _token(tasks)]
        self._settle("release", None, head, [(task.id,) for task in tasks])

    def dead_letter(
        self,
        burials: Sequence[tuple[Task, str, BaseException | None]],
        *,
        now_ms: int | None = None,
    ) -> None:
        """Make dead letters of tasks of one claim, given as (task, reason, error). Raises LeaseLost as `ack` does."""
        rows = [(task.id, _letter(task, reason, error)) for task, reason, error in burials]
        self._settle("dead_letter", now_ms, [_token([task for task, _, _ in burials])], rows)

    def _settle(
        self, script: str, now_ms: int | None, head: list[Any], rows: list[tuple[Any, ...]]
    ) -> None:
        lost: list[bytes] = []
        for part in _slices(rows):
            args = (value for task_id, *rest in part for value in (_bytes(task_id), *rest))
            lost += self._run(script, now_ms, *head, *args)
        if lost:
            raise LeaseLost(map(_text, lost))

    def beat(self, worker_id: str, details: Mapping[str, Any]) -> None:
        """Record that a worker is alive, with details of what it is doing."""
        self._run("beat", None, worker_id, json.dumps(details), FORGET_WORKERS_MS)

    def sign_off(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        self._redis.hdel(self.keys.workers, worker_id)

    # -- an operator's side ----------------------------------------------------------------

    def dead(self, limit: int = 100, offset: int = 0) -> list[Letter]:
        """Dead letters, newest first."""
        entries = _list(self._redis.lrange(self.keys.dead, offset, offset + limit - 1))
        return self.letters(map(_text, entries))

    def requeue(self, ids: Iterable[str], *, now_ms: int | None = None) -> list[str]:
        """Schedule dead tasks again, due now, with their counts reset. Returns the ids that were dead.

        The tasks keep their appointment, and with it their idempotency key.
        """
        return self._remove_letters("requeue", now_ms, [self.keys.wake], ids)

    def purge(self, ids: Iterable[str]) -> list[str]:
        """Delete dead tasks for good. Returns the ids that were dead."""
        return self._remove_letters("purge", None, [], ids)

    def _remove_letters(
        self, script: str, now_ms: int | None, head: list[Any], ids: Iterable[str]
    ) -> list[str]:
        found: list[str] = []
        for part in _slices(_each(ids), size=REMOVED):
            found += map(_text, self._run(script, now_ms, *head, *part))
        return found

    def letters(self, ids: Iterable[str], *, with_payloads: bool = True) -> list[Letter]:
        """The dead letters of these tasks, in the order given; tasks that are not dead are left out.

        Payloads may be large. With ``with_payloads=False`` they are not read, and each is empty.
        """
        found: list[Letter] = []
        for part in _slices([*dict.fromkeys(_each(ids))], size=LETTERS):
            stories = _list(self._redis.hmget(self.keys.letters, part))
            payloads: list[Any] = [b""] * len(part)
            if with_payloads:
                payloads = _list(self._redis.hmget(self.keys.payloads, part))
            found += [
                Letter(_text(task_id), payload or b"", json.loads(story))
                for task_id, story, payload in zip(part, stories, payloads, strict=True)
                if story is not None
            ]
        return found

    def newest_dead_ids(self, passed: int = 0) -> Iterator[list[str]]:
        """The ids of dead tasks, newest first, in pages; some may no longer have a letter.

        A page is read from 100 entries of the list, the last page from fewer; ``passed`` is how many entries
        to skip.
        """
        last = set[bytes]()
        while entries := _list(self._redis.lrange(self.keys.dead, passed, passed + LETTERS - 1)):
            # New letters go in front, and push the end of a page into the next one.
            yield [_text(task_id) for task_id in dict.fromkeys(entries) if task_id not in last]
            passed, last = passed + len(entries), set(entries)

    def dead_ids(self) -> Iterator[list[str]]:
        """The ids of tasks that are dead now, oldest first, in pages.

        A page may be requeued or purged before the next one is read.
        """
        left, passed = _int(self._redis.llen(self.keys.dead)), 0
        while left > 0:
            entries = _list(
                self._redis.lrange(self.keys.dead, -min(left, LETTERS) - passed, -1 - passed)
            )
            if not entries:
                return
            left -= len(entries)
            dead = [*compress(entries, self._are_dead(entries))]
            yield [_text(task_id) for task_id in reversed(dead)]
            passed += self._left_of(entries, passed)

    def _left_of(self, entries: Sequence[bytes], passed: int) -> int:
        """How many entries of a page are still in the list, which grows only at the other end.

        In the middle of a long list, an entry stays when its letter is removed.
        """
        now_there = _list(self._redis.lrange(self.keys.dead, -len(entries) - passed, -1 - passed))
        older = reversed(entries)
        return sum(1 for _ in takewhile(lambda entry: entry in older, reversed(now_there)))

    def _are_dead(self, ids: Sequence[bytes]) -> list[bool]:
        with self._redis.pipeline(transaction=False) as pipe:
            for task_id in ids:
                pipe.hexists(self.keys.letters, task_id)
            return pipe.execute()

    def stats(self, *, now_ms: int | None = None) -> Stats:
        """Count the tasks in each place at one moment."""
        return stats_in(self._run("stats", now_ms))

    def forecast(
        self, intervals: int = 30, interval_ms: int = 60_000, *, now_ms: int | None = None
    ) -> list[int]:
        """How many tasks become due in each of the next intervals. Tasks that are already due are not counted.

        Raises ValueError for more than 1,000 intervals, or an interval that is not positive.
        """
        if not (1 <= intervals <= MAX_INTERVALS and interval_ms > 0):
            raise ValueError(f"a forecast has 1 to {MAX_INTERVALS} intervals of 1 ms or more")
        return [*map(int, self._run("forecast", now_ms, intervals, interval_ms))]

    def upcoming(self, limit: int = 10) -> list[tuple[str, int]]:
        """The scheduled tasks that are due first, as (id, due_at_ms), in this order. Changes nothing.

        Raises ValueError for a limit that is not 1 to 500.
        """
        if not 1 <= limit <= MAX_SAMPLE:
            raise ValueError(f"a limit is 1 to {MAX_SAMPLE} tasks, not {limit}")
        found: Any = self._redis.zrange(self.keys.scheduled, 0, limit - 1, withscores=True)
        return [(_text(task_id), int(due_at_ms)) for task_id, due_at_ms in found]

    def last_seeded_ms(self) -> int | None:
        """When the last occurrence that was `seed`ed is or was due, in ms since the epoch; None without one."""
        found: Any = self._redis.zrange(self.keys.seeded, -1, -1, withscores=True)
        return int(found[0][1]) if found else None

    def look_up(self, task_id: str, *, now_ms: int | None = None) -> TaskState | None:
        """Where a task is; None when the queue does not have it. Changes nothing."""
        place, in_ms, *counts = self._run("look_up", now_ms, _bytes(task_id))
        return TaskState(Place(place.decode()), in_ms, *counts) if place else None

    def inspect(self, sample: int = 200) -> list[str]:
        """A sentence for each task that breaks an invariant of the queue, among ``sample`` tasks of each place.

        Changes nothing. Raises ValueError for a sample that is not 1 to 500.
        """
        if not 1 <= sample <= MAX_SAMPLE:
            raise ValueError(f"a sample is 1 to {MAX_SAMPLE} tasks, not {sample}")
        reply = self._run("inspect", None, sample)
        rows = zip(*(reply[column::5] for column in range(5)), strict=True)
        return [_inconsistency(_text(task_id), *places) for task_id, *places in rows]

    def server_time_ms(self) -> int:
        """The server's clock: ms since the epoch."""
        reply: Any = self._redis.time()
        return int(reply[0] * 1000 + reply[1] // 1000)

    def workers(self) -> list[WorkerStatus]:
        """The known workers, sorted by id. A live one sends a heartbeat every 20 s.

        Workers that have been silent for an hour are removed.
        """
        now_ms = self.server_time_ms()
        known: Any = self._redis.hgetall(self.keys.workers)
        statuses = []
        for worker_id, value in sorted(known.items()):
            heard_ms, _, details = value.partition(b" ")
            ago = max(0, now_ms - int(heard_ms))
            statuses.append(WorkerStatus(_text(worker_id), ago, json.loads(details)))
        return statuses

    def pause(self) -> None:
        """Make claims return nothing and sweeps do nothing, in every worker, until `resume`.

        If Redis loses the pause, workers that know of it renew it.
        """
        with self._redis.pipeline() as pipe:
            pipe.set(self.keys.paused, b"1")
            pipe.delete(self.keys.resumed)
            pipe.execute()
        self.last_known_paused = True

    def resume(self) -> None:
        """End a pause and wake the workers."""
        with self._redis.pipeline() as pipe:
            pipe.set(self.keys.resumed, b"1")
            pipe.delete(self.keys.paused)
            pipe.execute()
        self.last_known_paused = False
        self.wake()

    def destroy(self) -> None:
        """Delete the queue and everything in it, atomically: every task, dead letter and count.

        Workers that hold a task find its lease lost, and write nothing. The queue can be used again at once:
        a worker that is still running appears in it again, and its sweep restores what the records list as
        waiting. Workers also renew a pause, so resume a paused queue first.
        """
        self._redis.unlink(*self.keys.stored())

    def wake(self) -> None:
        """Wake every waiting worker. Without permission to publish, they look again at their next slow poll."""
        with suppress(redis.exceptions.NoPermissionError):
            self._redis.publish(self.keys.wake, b"")

    def check_server(self) -> list[str]:
        """Check that this server does not evict or silently lose tasks; return warnings.

        Raises UnsafeServer when its eviction policy may delete the queue.
        """
        warnings = []
        try:
            memory: Any = self._redis.info("memory")
            persistence: Any = self._redis.info("persistence")
        except redis.ResponseError as error:
            return [f"INFO was refused ({error}), so the eviction policy is unknown"]
        policy = memory.get("maxmemory_policy")
        if policy is None:
            warnings.append("the server does not report its eviction policy")
        elif policy != "noeviction":
            raise UnsafeServer(
                f"Its maxmemory-policy is {policy}, which may evict whole queues: "
                "set it to noeviction."
            )
        if not persistence.get("aof_enabled"):
            warnings.append("appendonly is off: Redis may lose tasks when it restarts")
        return warnings


# -- arguments and replies, shared with `AsyncDelayQueue` -----------------------------------


def refuse_decoding(client: Any) -> None:
    """Raises ValueError for a client that decodes responses."""
    if client.get_encoder().decode_responses:
        raise ValueError("payloads are bytes: the client must not have decode_responses=True")


def task_to_schedule(
    task_id: str, due_at_ms: float | None, payload: bytes, delay_ms: float | None
) -> tuple[str, float, bytes] | Due:
    """One task for `schedule_args`.

    Raises ValueError unless it has either a time or a delay and can be stored.
    """
    if due_at_ms is not None and delay_ms is None:
        task: tuple[str, float, bytes] | Due = (task_id, due_at_ms, payload)
    elif delay_ms is not None and due_at_ms is None:
        task = Due(task_id, checked_delay(delay_ms), payload)
    else:
        raise ValueError("a task is scheduled with either due_at_ms or delay_ms, not both")
    _checked(task)
    return task


def schedule_args(
    keys: Keys, tasks: Iterable[tuple[str, float, bytes] | Due], *, only_if_absent: bool
) -> Iterator[Iterable[Any]]:
    """The arguments of each call of `schedule.lua`.

    Raises ValueError for a task that cannot be stored, before it yields anything.
    """
    head = (keys.wake, int(only_if_absent))
    for part in _slices([*map(_checked, tasks)]):
        yield chain(head, chain.from_iterable(part))


def scheduled_in(reply: Iterable[bytes]) -> list[Scheduled]:
    """Parse the reply of `schedule.lua`."""
    return [Scheduled(answer.decode()) for answer in reply]


def cancel_args(ids: Iterable[str]) -> Iterator[Iterable[Any]]:
    """The arguments of each call of `cancel.lua`."""
    return _slices(_each(ids))


def cancelled_in(reply: Iterable[bytes]) -> list[Cancelled]:
    """Parse the reply of `cancel.lua`."""
    return [Cancelled(answer.decode()) for answer in reply]


def stats_in(reply: Iterable[Any]) -> Stats:
    """Parse the reply of `stats.lua`."""
    scheduled, due, within_minute, leased, dead, paused, oldest_dead_age_ms, next_due = reply
    return Stats(
        scheduled=scheduled,
        due=due,
        due_within_minute=within_minute,
        leased=leased,
        dead=dead,
        paused=bool(paused),
        next_due_in_ms=None if next_due is None else max(0, next_due),
        oldest_due_age_ms=max(0, -(next_due or 0)),
        oldest_dead_age_ms=max(0, oldest_dead_age_ms),
    )


def _inconsistency(task_id: str, *flags: int) -> str:
    """What `inspect.lua` found wrong with a task, as a sentence."""
    *places, held = flags
    names = [
        name for name, there in zip(("scheduled", "leased", "dead"), places, strict=True) if there
    ]
    if not names:
        return f"{task_id} is in no place, but its attempts are recorded"
    if len(names) > 1:
        return f"{task_id} is {' and '.join(names)} at once"
    return f"{task_id} is {names[0]}, and {'has a' if held else 'has no'} lease token"


def _slices(rows: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _checked(task: tuple[str, float, bytes] | Due) -> tuple[bytes, int | str, bytes]:
    """A task as `schedule.lua` takes it."""
    task_id, at_ms, payload = task
    if isinstance(task, Due):
        return _id(task_id), f"+{checked_delay(at_ms)}", payload
    if not 0 <= at_ms <= MAX_DUE_AT_MS:  # false for NaN and infinity too
        raise ValueError(f"due_at_ms is from 0 to 2**53 - 1, not {at_ms}")
    return _id(task_id), math.ceil(at_ms), payload


def _id(task_id: str) -> bytes:
    if not task_id:  # scripts remove the empty id where they need a write that changes nothing
        raise ValueError("a task id is not empty")
    return _bytes(task_id)


def _each(ids: Iterable[str]) -> list[bytes]:
    """Task ids for a script. Raises TypeError for a single id, whose letters would be taken for ids."""
    if isinstance(ids, str):
        raise TypeError(f"pass a list of task ids, not {ids!r}")
    return [_bytes(task_id) for task_id in ids]


def _token(tasks: Sequence[Task]) -> str:
    """The token that tasks of one claim share."""
    tokens = {task.token for task in tasks}
    if len(tokens) > 1:
        raise ValueError("tasks of several claims cannot be settled in one call")
    return tokens.pop() if tokens else ""


def _letter(task: Task, reason: str, error: BaseException | None) -> str:
    story = {
        "reason": reason,
        "error": described(error)[:2000] if error else None,
        # The end matters most: what was raised, and where.
        "traceback": "".join(traceback.format_exception(error))[-4000:] if error else None,
        "failures": task.failures,
        "deliveries": task.deliveries,
        "due_at_ms": task.due_at_ms,
    }
    return json.dumps(story)


def _bytes(task_id: str) -> bytes:
    return task_id.encode(errors="surrogateescape")


def _text(task_id: bytes) -> str:
    """Accepts any bytes, because other programs may have written the id."""
    return task_id.decode(errors="surrogateescape")


def _list(reply: Any) -> list[Any]:
    """redis-py types each reply as a value or an awaitable; on this client it is the value."""
    return list(reply)


def _int(reply: Any) -> int:
    return int(reply)
