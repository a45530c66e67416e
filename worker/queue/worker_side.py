"""What claims, settles and restores tasks."""

import json
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, repeat
from operator import attrgetter, itemgetter
from typing import Any
from urllib.parse import quote

import redis

from ..errors import LeaseLost, described, without_statements
from ..flow import MAX_BATCH_SIZE, Due, Retry, Task
from .formats import checked_id, id_to_bytes, id_to_text, packed, slices, slices_by_size
from .replies import Claim, Restored, Seeded, Settlement, Verb
from .scripted import ScriptedQueue

#: Random bytes; 64 hex characters, the length the scripts cut at.
TOKEN_BYTES = 32
#: A claim that Redis executes later than this after it was sent leases nothing: its caller has stopped waiting.
STALE_MS = 1000
#: For how long leases that have ended are left to their workers, after Redis did not answer for a third of a lease.
SPARED_SECONDS = 2.0
#: How many characters of a reason and of an error's message a dead letter keeps.
MAX_TEXT = 2000
#: How many a task keeps that is put back.
MAX_LINE = 200
#: What `claim.lua` says when it brings nothing for another reason than that nothing is due.
PAUSED, ENDED = 1, 2
#: For a script that need not ask for the time.
NO_TIME = 0
#: As `Task`'s own, without a call in Python for each.
_TASK = partial(tuple.__new__, Task)
#: Workers that have sent no heartbeat for this long are removed.
FORGET_WORKERS_MS = 3_600_000


class WorkerSide(ScriptedQueue):
    """The methods of a `DelayQueue` for its workers."""

    def _run(self, name: str, now_ms: int | None, *args: Any) -> Any:
        return self._answered(self.environment.clock(), partial(super()._run, name, now_ms, *args))

    def _answered(self, asked_at: float, reply: Callable[[], Any]) -> Any:
        """The reply. Remembers since when there has been none, or a refusal: no lease is extended meanwhile."""
        try:
            return reply()
        except redis.RedisError:
            if self.memory.silent_since is None:
                self.memory.silent_since = asked_at
            raise

    def claim(
        self, limit: int, lease_ms: int, *, ahead_ms: int = 0, now_ms: int | None = None
    ) -> Claim:
        """Lease, for ``lease_ms``, up to ``limit`` tasks that are due.

        Where leases have expired, `redeliver.lua` puts some back first, with one more delivery each. Such suspects are
        claimed a few at a time, and alone after their second expired lease. If the reply is lost, the next claim first has
        its tasks put back.
        No task is claimed early: due times are compared with the server's clock, rounded down. With ``ahead_ms``, one that
        is due brings those with it that will be within this time, unless they were claimed before: the caller must wait.
        The oldest come first, but in a backlog of more than 1,000 every second claim takes those due last.
        After an outage of Redis, this caller leaves leases that have ended to their workers for 2 s.

        Fewer tasks come back if their payloads would be more than 1 MiB together; the first always does.

        Raises ValueError for a limit that is not 1 to 2,000, which is all that the script can hold.
        """
        if not 1 <= limit <= MAX_BATCH_SIZE:
            raise ValueError(f"a claim's limit is 1 to {MAX_BATCH_SIZE}, not {limit}")
        self.give_back(now_ms=now_ms)
        args, claimed = self._claiming(limit, lease_ms, ahead_ms, now_ms)
        return claimed(partial(self._run, "claim", now_ms, *args))

    def give_back(self, *, now_ms: int | None = None) -> None:
        """Put back what was leased by a claim that got no reply."""
        memory = self.memory
        if (token := memory.unanswered) is not None:
            self._run("give_back", now_ms, token, memory.claimer)
            memory.unanswered = None

    def settle_and_claim(
        self, done: Sequence[Settlement], limit: int, lease_ms: int, *, ahead_ms: int = 0
    ) -> tuple[Callable[[], None], Callable[[], Claim]]:
        """Remove up to 500 tasks that are done, and claim the next, in one round trip on this thread's line.

        Not to be called while a claim is unanswered, because only `claim` gives that back first.
        Returns what `settle` and `claim` would have done, each with its own errors. If the connection is lost, either script
        may have run, or both. It is as if each had been sent alone: what was settled is sent again, and what was claimed
        is put back, because a token proves for either what has run.
        """
        asked_at = self.environment.clock()
        args, claimed = self._claiming(limit, lease_ms, ahead_ms, None)
        settle, claim = (
            partial(self._answered, asked_at, reply)
            for reply in self._together(
                ("settle", NO_TIME, *_groups(_rows(done))), ("claim", "", *args)
            )
        )
        return lambda: _raise_lost(settle()), lambda: claimed(claim)

    def _claiming(
        self, limit: int, lease_ms: int, ahead_ms: int, now_ms: int | None
    ) -> tuple[Sequence[Any], Callable[[Callable[[], Any]], Claim]]:
        """The arguments of a claim, and what makes of its reply what it returns, and remembers what it tells.

        That has some tasks redelivered, and asks anew, if leases have ended, or may end too late.
        """
        memory, asked_at = self.memory, self.environment.clock()
        spares_ms = self._spares_ms(asked_at, lease_ms)
        token = self.environment.token(TOKEN_BYTES)
        newest, memory.takes_newest = memory.takes_newest, False
        said = {"newest": newest, "spares": spares_ms > 0}
        words = " ".join(word for word, is_so in said.items() if is_so)
        server_ms = memory.server_ahead_ms
        reply_by = "" if server_ms is None else round(1000 * asked_at + server_ms) + STALE_MS
        asked = limit, lease_ms, token, memory.claimer

        def claimed(reply: Callable[[], Any]) -> Claim:
            fields, latest, heard_at = list[Any](), reply_by, asked_at
            try:
                state, now, next_in_us, *fields = reply()
                # Or that cannot be told: it is the first claim.
                is_set_back = server_ms is None or now < 1000 * asked_at + server_ms - STALE_MS
                if state == ENDED or is_set_back:
                    few = limit if state == ENDED else 0
                    next_in_us, latest = 0, self._redeliver(now, few, lease_ms, now_ms)
                    if not fields:
                        heard_at = self.environment.clock()
                        anew = *asked, latest, ahead_ms, f"{words} redelivered"
                        state, now, next_in_us, *fields = self._run("claim", now_ms, *anew)
            except redis.RedisError as error:
                if fields or isinstance(error, redis.ConnectionError | redis.TimeoutError):
                    memory.unanswered = token
                raise
            is_stale = latest != "" and now > latest
            memory.silent_since = asked_at if is_stale else None
            if is_stale and 1000 * (self.environment.clock() - asked_at) < STALE_MS:
                # Redis's clock was set forward, and leases ended with it: their workers are about to extend them.
                memory.spares_until = asked_at + 0.5 * lease_ms / 1000
            if now_ms is None:
                memory.server_ahead_ms = now - 1000 * heard_at
            memory.paused = state == PAUSED
            next_in_ms = None if next_in_us < 0 else next_in_us / 1000
            if spares_ms and not memory.paused:
                next_in_ms = min(spares_ms, math.inf if next_in_ms is None else next_in_ms)
            tasks = _claimed(token, *fields)
            memory.takes_newest = bool(tasks) and next_in_us == 0 and not newest
            return Claim(tasks, now, next_in_ms, memory.paused)

        return (*asked, reply_by, ahead_ms, words), claimed

    def _redeliver(self, server_ms: int, limit: int, lease_ms: int, now_ms: int | None) -> int:
        """Put back some tasks whose lease has ended, unless the limit is 0; shorten leases that end too late.

        Returns when, by the server's clock, what was sent with this is no longer waited for.
        """
        latest = server_ms + STALE_MS
        while self._run("redeliver", now_ms, limit, lease_ms, latest):
            pass
        return latest

    def _spares_ms(self, asked_at: float, lease_ms: int) -> float:
        """For how many ms leases that have ended are left to their workers, who extend them after an outage."""
        memory = self.memory
        if memory.silent_since is not None:
            silence_ms = 1000 * (asked_at - memory.silent_since)
            if silence_ms > max(lease_ms / 3, STALE_MS):
                memory.spares_until = asked_at + SPARED_SECONDS
        return max(0.0, 1000 * (memory.spares_until - asked_at))

    def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> None:
        """End the leases on these tasks, each in its own way::

            queue.settle([Settlement(tasks, Verb.DONE)])

        Raises LeaseLost with the ids of those that are no longer this worker's; the others are settled.
        """
        if now_ms is None and all(each.verb is Verb.DONE for each in settlements):
            now_ms = NO_TIME
        lost = list[bytes]()
        for part in packed(settlements):
            for rows in slices_by_size([*_rows(part)]):
                lost += self._run("settle", now_ms, *_groups(rows))
        _raise_lost(lost)

    def extend(self, tasks: Sequence[Task], lease_ms: int, *, now_ms: int | None = None) -> None:
        """Extend the leases on tasks, of any claims, to ``lease_ms`` from now. Raises LeaseLost as `settle` does."""
        lost = list[bytes]()
        for part in slices(tasks):
            args = list[Any]()
            for token, ids in _by_token(part):
                args += [token, len(ids), *ids]
            lost += self._run("extend", now_ms, lease_ms, *args)
        _raise_lost(lost)

    def beat(self, worker_id: str, details: Mapping[str, Any]) -> tuple[int, int]:
        """Record that a worker is alive, with details of what it is doing. Returns how many are, and its place, from 0."""
        count, place = self._run("beat", None, worker_id, json.dumps(details), FORGET_WORKERS_MS)
        return count, place

    def sign_off(self, worker_id: str) -> None:
        """Remove a worker that has stopped."""
        self._redis.hdel(self.keys.workers, worker_id)
        self._redis.zrem(self.keys.heard, worker_id)

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
        found = Restored((), 0, paused=False)
        rows = [
            (checked_id(due.id), math.ceil(due.delay_ms), b"" if look_only else due.payload)
            for due in waiting
        ]
        for part in slices_by_size(rows) if rows else [[]]:
            turn, turn_in_ms, paused, overdue, *lost = self._run(
                "restore",
                now_ms,
                worker_id,
                term_ms,
                "" if look_only else "1",
                *chain.from_iterable(part),
            )
            found = Restored(
                found.lost + tuple(map(id_to_text, lost)),
                found.due + overdue,
                bool(paused),
                turn > 0,
                found.new_turn or turn == 2,  # noqa: PLR2004  see the script
                turn_in_ms,
            )
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


def _claimed(
    token: str,
    ids: Sequence[bytes] = (),
    payloads: Sequence[bytes | None] = (),
    dues: Sequence[int] = (),
    tried: Sequence[Sequence[int]] = (),
) -> list[Task]:
    """The tasks in the reply of `claim.lua`."""
    bodies = [body or b"" for body in payloads] or repeat(b"")
    first = zip(
        map(id_to_text, ids), bodies, repeat(0), repeat(0), dues, repeat(token), repeat(1), dues
    )
    tasks = [*map(_TASK, first)]
    for n, appointment_ms, failures, deliveries, attempt in tried:
        tasks[n] = tasks[n]._replace(
            failures=failures,
            deliveries=deliveries,
            attempt=attempt,
            appointment_ms=appointment_ms,
        )
    return tasks


def _by_token(tasks: Sequence[Task]) -> Iterator[tuple[str, list[bytes]]]:
    """Tasks of one claim after those of another one, as scripts take them."""
    for token, group in groupby(tasks, attrgetter("token")):
        yield token, [id_to_bytes(task.id) for task in group]


def _rows(settlements: Iterable[Settlement]) -> Iterator[tuple[Any, ...]]:
    """The ids of one claim that are settled in one way, and what `settle.lua` takes with them."""
    for each in settlements:
        text = _text(each)
        for token, ids in _by_token(each.tasks):
            yield ids, token, each.verb, math.ceil(each.delay_ms), text


def _groups(rows: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """The arguments of `settle.lua`."""
    for how, alike in groupby(rows, itemgetter(1, 2, 3, 4)):
        ids = [*chain.from_iterable(row[0] for row in alike)]
        yield from (*how, len(ids), *ids)


def _raise_lost(ids: Sequence[bytes]) -> None:
    if ids:
        raise LeaseLost([*map(id_to_text, ids)])


def _text(settlement: Settlement) -> str:
    """Why they are settled so: a dead one's letter, or the first line of an error, without a space. For those that are
    done, whether any has a payload.
    """
    if settlement.verb is Verb.DEAD:
        return _letter(settlement)
    if settlement.verb is Verb.DONE:
        return "1" if any(map(attrgetter("payload"), settlement.tasks)) else ""
    error = settlement.error
    if isinstance(error, Retry):
        error = error.__cause__
    if error is None:
        return ""
    return quote(described(error).partition("\n")[0][:MAX_LINE], errors="replace")


def _traceback(error: BaseException) -> str:
    return without_statements("".join(traceback.format_exception(error)))


def _letter(settlement: Settlement) -> str:
    [task], error = settlement.tasks, settlement.error
    story = {
        "reason": settlement.reason[:MAX_TEXT],
        "error": described(error)[:MAX_TEXT] if error else None,
        # The end matters most: what was raised, and where.
        "traceback": _traceback(error)[-4000:] if error else None,
        "failures": task.failures,
        "deliveries": task.deliveries,
        "due_at_ms": task.due_at_ms,
    }
    return json.dumps(story)
