"""A model of the queue in plain Python, which does the same as the queue and is compared with it."""

from dataclasses import dataclass, field
from itertools import takewhile
from math import ceil, isqrt
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from tests.kit.queue_state import NOBODY, State, attempts, state
from tests.kit.queue_steps import PUTS, QueueAt, never_sent, numbered, reply_lost
from tests.kit.settling import ack, dead_letter, release, retry
from worker import Cancelled, Due, LeaseLost, Scheduled, Task
from worker.queue.environment import Environment
from worker.queue.replies import Restored, Seeded, Stats, Verb

#: Other programs may schedule ids that are not text.
IDS = st.sampled_from(
    ["a", "b", "c", b"\xff\xfe\r\n\x00 \x1b[31m".decode(errors="surrogateescape")]
)
SETS_OF_IDS = st.lists(IDS, min_size=1, max_size=3)
PAYLOADS = st.sampled_from([b"", b"\x00\xff", b"{}"])
#: Parts of a millisecond are rounded up.
DELAYS = st.integers(-20, 160).map(lambda quarters: quarters / 4)
LEASES = st.integers(1, 40)
NAMES: tuple[str, ...] = ("w 1", "1")
WORKERS = st.sampled_from(NAMES)
#: Of what would undo too much of what the other rules did.
SELDOM = st.sampled_from([False, False, False, False, True])
DAY = 86_400_000
TERM = 20
#: For how long after an outage of Redis leases that have ended are left to their workers.
SPARED = 2000
#: An outage is longer. A claim that runs later than this after it was sent leases nothing.
STALE = 1000
#: A task that is later than its record says by no more than this is left where it is.
SLACK = 100
#: A schedule of recurring runs is in force for so long after a worker that has it has looked.
IN_FORCE = 180_000
#: A run's id, and when it is due.
Run = tuple[str, int]


@dataclass
class Attempts:
    """What is kept of a task from its first claim on."""

    due: int
    appointment: int
    token: str = NOBODY
    #: From when the task's score was decided to that score.
    span: int = 0
    failures: int = 0
    deliveries: int = 0
    before: int = 0
    claimed: int = 0


@dataclass
class Known:
    """A task as the model knows it."""

    place: str
    #: When it is due, or its lease ends; the time of death of a dead one.
    at: int
    payload: bytes = b""
    attempts: Attempts | None = None
    letter: dict[str, Any] = field(default_factory=dict)

    @property
    def tried(self) -> Attempts:
        assert self.attempts
        return self.attempts


class Said(NamedTuple):
    """What a worker's claim tells the server, besides what it wants."""

    worker: str
    #: Whether it wants the newest.
    newest: bool
    #: For how long it leaves leases that have ended to their workers.
    spares: float
    #: When it expects the claim to run, if it can tell.
    expected: int | None
    #: The token of its claim whose reply was lost: what that leased is put back first.
    lost: str


#: With more due tasks than these, the newest are claimed in every second claim. The machine has fewer.
BACKLOG = 1000


class Machine(RuleBasedStateMachine):
    """Does the same to the queue and to the model, and compares all that is stored."""

    claimed: Bundle[Task] = Bundle("claimed")
    #: The workers' ids.
    names = NAMES

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        client.flushall()
        self.client = client
        #: The server's clock, and for how many ms the machine has run: clocks of processes are not set back.
        self.now, self.ran = 10 * DAY, 0
        environment = Environment(clock=lambda: self.ran / 1000, token=numbered())
        self.queue, *queues = (QueueAt(self.time, client, environment) for _ in range(3))
        #: Each worker has a queue of its own.
        self.workers = dict(zip(self.names, queues, strict=True))
        #: Since when Redis has not answered a worker, until when that spares leases, and Redis's clock minus this
        #: machine's as the worker knows it.
        self.silent: dict[str, int] = {}
        self.spares_until: dict[str, float] = {}
        self.ahead: dict[str, int] = {}
        self.forget_everything()

    def time(self) -> int:
        return self.now

    def forget_everything(self) -> None:
        self.known: dict[str, Known] = {}
        self.dead: list[str] = []
        self.paused = False
        #: Worker -> when the leases end that its latest claim gave.
        self.claims: dict[str, int] = {}
        self.alone: str | None = None
        #: Who sweeps, and until when.
        self.sweeper: tuple[int, str] | None = None
        #: The recurring runs that were scheduled; and until when which schedule is in force, since when.
        self.seeded: dict[str, int] = {}
        self.recurrence: tuple[int, int, str] | None = None

    # -- the clock, and putting in ---------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for task_id in ("a", "b", "c"):
            self.schedule(task_id, 0, b"")

    @rule(ms=st.sampled_from([1, 2, 3, 5, 8, 10, 15, 20, 25, 30, STALE, SPARED, IN_FORCE, 2 * DAY]))
    def time_passes(self, ms: int) -> None:
        self.now, self.ran = self.now + ms, self.ran + ms

    @rule(ms=st.sampled_from([-1, -5, -10, -20, -100, -2 * STALE, 2 * STALE]))
    def the_clock_is_set(self, ms: int) -> None:
        self.now += ms

    @rule(
        task_id=IDS,
        delay=DELAYS,
        payload=PAYLOADS,
        relative=st.booleans(),
    )
    def schedule(
        self,
        task_id: str,
        delay: float,
        payload: bytes,
        *,
        relative: bool = False,
    ) -> None:
        due = self.now + ceil(delay)
        known = self.known.get(task_id)
        if known is None:
            expected = Scheduled.CREATED
        elif known.place == "dead":
            expected = Scheduled.DEAD
        elif (known.place, known.at, known.payload) == ("scheduled", due, payload):
            expected = Scheduled.UNCHANGED
        else:
            expected = Scheduled.RESCHEDULED
        when: Any = {"delay_ms": delay} if relative else {"due_at_ms": self.now + delay}
        said = self.queue.schedule(task_id, payload=payload, **when)
        assert said is expected
        if expected in (Scheduled.CREATED, Scheduled.RESCHEDULED):
            self.known[task_id] = Known("scheduled", due, payload)

    @rule(task_id=IDS)
    def cancel(self, task_id: str) -> None:
        known = self.known.get(task_id)
        expected = Cancelled.MISSING
        if known and known.place == "scheduled":
            expected = Cancelled.REMOVED
            del self.known[task_id]
        elif known and known.place == "leased":
            expected = Cancelled.CANCELLING
            del self.known[task_id]
        elif known:
            expected = Cancelled.DEAD
        assert self.queue.cancel(task_id) is expected

    # -- sweeping --------------------------------------------------------------------------

    @rule(
        ids=SETS_OF_IDS,
        delay=DELAYS | st.integers(-200, -80),
        payload=PAYLOADS,
        worker=WORKERS | st.just(""),
        look_only=st.booleans(),
    )
    def restore(
        self, ids: list[str], delay: float, payload: bytes, worker: str, *, look_only: bool
    ) -> None:
        waiting = [Due(task_id, delay, payload) for task_id in ids]
        due_at = self.now + ceil(delay)
        found = self.queue.restore(waiting, worker_id=worker, term_ms=TERM, look_only=look_only)
        turn, new_turn, turn_in_ms = self.turn(worker)
        if not turn or self.paused:
            assert found == Restored((), 0, self.paused, turn, new_turn, turn_in_ms)
            return
        due = 0
        lost = []
        for task_id in ids:
            known = self.known.get(task_id)
            if known is None:
                lost.append(task_id)
                if not look_only:
                    self.known[task_id] = Known("scheduled", due_at, payload)
            elif known.place == "scheduled" and known.at <= self.now:
                due += 1
            elif (
                known.place == "scheduled"
                and not self.rests(known, due_at)
                and due_at < known.at - SLACK
            ):
                if look_only:
                    lost.append(task_id)
                else:
                    known.at = due_at
            elif known.place == "leased":
                self.shorten_lease(known)
        assert found == Restored((*lost,), due, paused=False, new_turn=new_turn)

    def turn(self, worker: str) -> tuple[bool, bool, int]:
        """Whether a worker sweeps, whether newly, and for how long another one does."""
        if not worker:
            return True, False, 0
        until, sweeper = self.sweeper or (0, "")
        if sweeper != worker and self.now < until <= self.now + TERM:
            return False, False, until - self.now
        self.sweeper = (self.now + TERM, worker)
        return True, sweeper != worker, 0

    def rests(self, known: Known, due: int) -> bool:
        """Whether it was put off when it was due already, by a clock that was right."""
        if known.attempts is None:
            return False
        put_off_at = known.at - known.attempts.span
        return due - SLACK <= put_off_at <= self.now

    @rule(
        schedule=st.sampled_from(["daily", "hourly"]),
        started=st.integers(-30, 30),
        ahead=st.integers(-20, 40),
        expected=st.none() | st.integers(-20, 0),
    )
    def seed_runs(self, schedule: str, started: int, ahead: int, expected: int | None) -> None:
        upcoming, *missed = [
            (f"at {self.now + ms}", self.now + ms) for ms in (ahead, expected) if ms is not None
        ]
        self.seed(schedule, self.now + started, upcoming, *missed)

    def seed(
        self, schedule: str, started: int, upcoming: Run, expected: Run | None = None
    ) -> Seeded:
        found = self.queue.seed(schedule, started, upcoming, expected)
        runs = self.runs_to_seed(schedule, started, upcoming, expected)
        assert found == Seeded(runs is not None, tuple(run for run, _ in runs or ()))
        for run, due in runs or ():
            self.known[run], self.seeded[run] = Known("scheduled", due), due
        return found

    def runs_to_seed(
        self, schedule: str, started: int, upcoming: Run, expected: Run | None
    ) -> list[Run] | None:
        """Those that are scheduled; None if another schedule is in force. Runs of that are removed, unless they are due
        or have begun.
        """
        until, since, in_force = self.recurrence or (0, 0, "")
        since, started = (at if at <= self.now else 0 for at in (since, started))
        all_lost = not self.seeded
        if in_force != schedule:
            is_newer = (started, schedule) > (since, in_force)
            if not is_newer and self.now < until <= self.now + IN_FORCE:
                return None
            for run in [run for run, due in self.seeded.items() if due > self.now]:
                known = self.known.get(run)
                never_claimed = known and (known.place, known.attempts) == ("scheduled", None)
                if never_claimed and run != upcoming[0]:
                    del self.known[run], self.seeded[run]
            since = 0
        self.recurrence = self.now + IN_FORCE, max(since, started), schedule
        runs = [expected] if expected and all_lost else []
        is_past = upcoming[1] <= min(self.now, max(self.seeded.values(), default=0))
        if not is_past and upcoming[0] not in self.seeded and upcoming not in runs:
            runs.append(upcoming)
        return runs

    # -- a worker --------------------------------------------------------------------------

    @rule(
        target=claimed,
        worker=WORKERS,
        limit=st.integers(1, 10),
        lease=LEASES,
        ahead=st.sampled_from([0, 0, 50]),
    )
    def claim(self, worker: str, limit: int, lease: int, ahead: int) -> Any:
        said = self.asks(worker)
        claim = self.workers[worker].claim(limit, lease, ahead_ms=ahead)
        self.give_back(said)
        self.silent.pop(worker, None)
        self.ahead[worker] = self.now - self.ran
        if self.is_stale(said):  # the clock was set forward
            self.silent[worker], self.spares_until[worker] = self.ran, self.ran + lease / 2
        token = claim.tasks[0].token if claim.tasks else ""
        ids = self.take(said, limit, lease, token, ahead)
        if looks := ids is None or said.expected is None or self.now < said.expected - STALE:
            self.redeliver(limit if ids is None else 0, lease)
        if looks and not ids:
            ids = self.take(said, limit, lease, token, ahead, redelivered=True)
            looks = False
        assert ids is not None
        assert claim.tasks == [self.as_task(task_id) for task_id in ids]
        assert (claim.paused, claim.now_ms) == (self.paused, self.now)
        ends: list[float] = [
            known.at - self.now
            for known in self.known.values()
            if known.place == "scheduled" or (known.place == "leased" and not said.spares)
        ]
        if said.spares:
            ends.append(said.spares)
        if self.is_stale(said) or looks:
            ends = [0]
        waits = ends and not self.paused
        assert claim.next_in_ms == (pytest.approx(max(0, min(ends))) if waits else None)
        return multiple(*claim.tasks)

    @rule(
        worker=WORKERS,
        limit=st.integers(1, 10),
        lease=LEASES,
        error=st.sampled_from([redis.TimeoutError, redis.ConnectionError]),
    )
    def claim_and_lose_the_reply(
        self,
        worker: str,
        limit: int,
        lease: int,
        error: type[redis.RedisError] = redis.TimeoutError,
    ) -> None:
        said = self.asks(worker)
        with reply_lost(self.workers[worker], error):
            self.workers[worker].claim(limit, lease)
        self.silent.setdefault(worker, self.ran)
        if said.lost:
            self.give_back(said)
        else:
            self.take(said, limit, lease, self.said(worker).lost)

    @rule(worker=WORKERS)
    def claim_without_a_connection(self, worker: str) -> None:
        self.asks(worker)
        with never_sent(self.workers[worker]):
            self.workers[worker].claim(1, 1)
        self.silent.setdefault(worker, self.ran)

    def said(self, worker: str) -> Said:
        """What the worker's next claim will say."""
        memory = self.workers[worker].memory
        until = self.spares_until.get(worker, self.ran)
        if self.ran - self.silent.get(worker, self.ran) > STALE:
            until = self.ran + SPARED
        expected = self.ran + self.ahead[worker] if worker in self.ahead else None
        spares = max(0, until - self.ran)
        return Said(worker, memory.takes_newest, spares, expected, memory.unanswered or "")

    def asks(self, worker: str) -> Said:
        said = self.said(worker)
        self.spares_until[worker] = self.ran + said.spares
        return said

    def is_stale(self, said: Said) -> bool:
        """Whether nobody waits for the reply any more."""
        return said.expected is not None and self.now - said.expected > STALE

    def take(
        self,
        said: Said,
        limit: int,
        lease: int,
        token: str,
        ahead: int = 0,
        *,
        redelivered: bool = False,
    ) -> list[str] | None:
        """What a claim leases, when the server executes it; None if leases have ended."""
        if self.paused or self.is_stale(said):
            return []
        if not redelivered and not said.spares and self.ripe("leased"):
            return None
        ids = self.take_due(limit, ahead, newest=said.newest)
        if ids and self.deliveries(ids[0]) > 1:
            self.alone = ids[0]
        if ids:
            self.claims[said.worker] = self.now + lease
        else:
            known_since = self.now - DAY // 24
            self.claims = {each: end for each, end in self.claims.items() if end > known_since}
        for task_id in ids:
            known = self.known[task_id]
            is_ahead = known.at <= self.now + ahead and known.attempts is None
            assert known.at <= self.now or is_ahead, "early"
            assert known.place != "dead"
            known.attempts = known.attempts or Attempts(due=known.at, appointment=known.at)
            known.attempts.token, known.attempts.span = token, lease
            known.attempts.claimed = self.now
            known.place, known.at = "leased", self.now + lease
        return ids

    def give_back(self, said: Said) -> None:
        """What its lost claim leased, if it was the worker's latest, is put back."""
        for _, known in self.in_order("leased"):
            if (known.at, known.tried.token) == (self.claims.get(said.worker), said.lost):
                known.place, known.at = "scheduled", known.tried.due
                known.tried.token, known.tried.span = NOBODY, 0

    def redeliver(self, limit: int, lease: int) -> None:
        """Put back a few whose lease has ended, or if the first died before, the one of such that was claimed last, unless
        they must wait.
        """
        self.shorten_leases(lease)
        expired = self.ripe("leased") if limit else []
        again = [task_id for task_id in expired if self.deliveries(task_id)]
        if again and self.must_wait(again[0]):
            for task_id in again:
                self.known[task_id].at = self.now + 100
            again = []
        if again and again[0] == expired[0]:
            expired = [max(again, key=lambda task_id: self.known[task_id].tried.claimed)]
        else:
            expired = [each for each in expired if not self.deliveries(each)][: isqrt(limit)]
        first = min((known.at for _, known in self.in_order("scheduled")), default=self.now)
        for task_id in expired:
            known = self.known[task_id]
            known.place, known.at = "scheduled", min(self.now, first - 1)
            known.tried.token, known.tried.span = NOBODY, 0
            known.tried.deliveries += 1
            known.tried.before += 1

    def must_wait(self, task_id: str) -> bool:
        """Whether another suspect is alone at this time, and has not lived for long enough yet."""
        other = self.known.get(self.alone or "")
        return (
            other is not None
            and self.alone != task_id
            and other.place == "leased"
            and self.now < other.at
            and other.tried.claimed <= self.now
            and other.at
            < other.tried.claimed + (0.7 + 0.3 * other.tried.deliveries) * other.tried.span
            and other.tried.deliveries > 1
        )

    def take_due(self, limit: int, ahead: int, *, newest: bool) -> list[str]:
        """Those of as many deaths each as the first: of one death a few, of more one, unless it must wait. In a backlog,
        the oldest or the newest. With what is due, what is ahead of it, up to one that was tried before.
        """
        due = self.ripe("scheduled")
        backlog = len(due) > max(BACKLOG, limit)
        if due and not (newest and backlog):
            due += [
                task_id
                for task_id, known in self.in_order("scheduled", after=self.now)
                if known.at <= self.now + ahead
            ]
        due = due[: -limit - 1 : -1] if newest and backlog else due[:limit]
        while due and self.known[due[0]].at <= self.now and self.deliveries(due[0]) > 1:
            if not self.must_wait(due[0]):
                break
            known = self.known[due.pop(0)]
            known.at, known.tried.span = self.now + 100, 100
        if not due or self.known[due[0]].at > self.now:
            return []
        deaths = min(2, self.deliveries(due[0]))
        most = (limit, isqrt(limit), 1)[deaths]
        return [*takewhile(lambda task_id: self.may_follow(task_id, deaths), due)][:most]

    def may_follow(self, task_id: str, deaths: int) -> bool:
        """Whether a task may be claimed with those of so many deaths; one that was tried before only if it is due."""
        known = self.known[task_id]
        is_alike = min(2, self.deliveries(task_id)) == deaths
        return is_alike and (known.at <= self.now or known.attempts is None)

    def deliveries(self, task_id: str) -> int:
        tried = self.known[task_id].attempts
        return tried.deliveries if tried else 0

    def shorten_leases(self, lease: int) -> None:
        """Those that begin after now were written before the clock was set back."""
        for _, known in self.in_order("leased", after=self.now + lease):
            self.shorten_lease(known)

    def shorten_lease(self, known: Known) -> None:
        if known.at - known.tried.span > self.now:
            known.at = self.now + known.tried.span

    @rule(task=claimed, lease=LEASES)
    def extend(self, task: Task, lease: int) -> None:
        if self.settles(task, lambda: self.queue.extend([task], lease)):
            known = self.known[task.id]
            known.at, known.tried.span = self.now + lease, lease

    @rule(task=claimed)
    def ack(self, task: Task) -> None:
        if self.settles(task, lambda: ack(self.queue, [task])):
            del self.known[task.id]

    @rule(task=claimed, delay=DELAYS, verb=st.sampled_from(PUTS))
    def retry(self, task: Task, delay: float, verb: Verb) -> None:
        if not self.settles(task, lambda: retry(self.queue, [(task, delay)], verb)):
            return
        known = self.known[task.id]
        known.place, known.at = "scheduled", self.now + ceil(delay)
        tried = known.tried
        span = 0 if verb is Verb.NOT_DUE else max(0, known.at - tried.claimed)
        tried.token, tried.span = NOBODY, span
        tried.before += 1
        if verb is Verb.FAILED:
            tried.failures += 1
        if verb in (Verb.AGAIN, Verb.NOT_DUE):
            tried.failures = tried.deliveries = 0
            tried.due = known.at
        if verb is Verb.NEW:
            known.attempts = Attempts(known.at, known.at, span=tried.span, claimed=tried.claimed)

    @rule(task=claimed)
    def release(self, task: Task) -> None:
        if self.settles(task, lambda: release(self.queue, [task])):
            known = self.known[task.id]
            known.place, known.at = "scheduled", known.tried.due
            known.tried.token, known.tried.span = NOBODY, 0

    @rule(task=claimed)
    def dead_letter(self, task: Task) -> None:
        burial = (task, "bad", ValueError("x"))
        if not self.settles(task, lambda: dead_letter(self.queue, [burial])):
            return
        known = self.known[task.id]
        known.place, known.at, known.tried.token = "dead", self.now, NOBODY
        known.letter = {
            "reason": "bad",
            "error": "ValueError: x",
            "traceback": "ValueError: x\n",
            "failures": task.failures,
            "deliveries": task.deliveries,
            "due_at_ms": task.due_at_ms,
            "died_at_ms": self.now,
        }
        self.dead.append(task.id)

    # -- an operator -----------------------------------------------------------------------

    @rule(ids=SETS_OF_IDS)
    def requeue(self, ids: list[str]) -> None:
        found = self.remove_letters(ids)
        for task_id in found:
            dead = self.known[task_id]
            again = Attempts(due=self.now, appointment=dead.tried.appointment)
            self.known[task_id] = Known("scheduled", self.now, dead.payload, again)
        assert self.queue.requeue(ids) == found

    @rule(ids=SETS_OF_IDS)
    def purge(self, ids: list[str]) -> None:
        found = self.remove_letters(ids)
        for task_id in found:
            del self.known[task_id]
        assert self.queue.purge(ids) == found

    @rule(paused=SELDOM)
    def pause_or_resume(self, *, paused: bool) -> None:
        (self.queue.pause if paused else self.queue.resume)()
        self.paused = paused

    @rule(really=SELDOM)
    def flush(self, *, really: bool) -> None:
        if really:
            self.client.flushall()
            self.forget_everything()

    @rule(really=SELDOM)
    def destroy(self, *, really: bool) -> None:
        if really:
            self.queue.destroy()
            self.forget_everything()

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def each_task_is_where_the_model_says_and_nothing_else_is_stored(self) -> None:
        stored = state(self.queue)
        dead = stored.pop("dead", [])
        assert self.died_in_order(dead[::-1])
        assert stored == self.modelled_state()
        places = [*stored.get("scheduled", {}), *stored.get("leased", {}), *dead]
        assert sorted(places) == sorted(self.known), "one place for each"
        assert {*stored.get("payloads", {}), *stored.get("tokens", {})} <= {*places}

    @invariant()
    def the_stats_count_the_same(self) -> None:
        waiting = [known.at for known in self.known.values() if known.place == "scheduled"]
        died = [self.known[task_id].at for task_id in self.dead]
        assert self.queue.stats() == Stats(
            scheduled=len(waiting),
            due=sum(at <= self.now for at in waiting),
            due_within_minute=sum(at <= self.now + 60_000 for at in waiting),
            leased=sum(known.place == "leased" for known in self.known.values()),
            dead=len(died),
            paused=self.paused,
            next_due_in_ms=max(0, min(waiting) - self.now) if waiting else None,
            oldest_due_age_ms=max([0, *(self.now - at for at in waiting)]),
            oldest_dead_age_ms=max([0, *(self.now - at for at in died)]),
        )

    @invariant()
    def the_dead_are_listed_once_each(self) -> None:
        listed = [task_id for some in self.queue.newest_dead_ids() for task_id in some]
        assert self.died_in_order(listed[::-1])

    # -- the model -------------------------------------------------------------------------

    def settles(self, task: Task, settle: Any) -> bool:
        """Whether the lease was valid; when it was not, nothing may have changed."""
        known = self.known.get(task.id)
        valid = known and known.attempts and known.attempts.token == task.token
        before = state(self.queue)
        if valid:
            settle()
            return True
        with pytest.raises(LeaseLost) as lost:
            settle()
        assert lost.value.ids == (task.id,)
        assert state(self.queue) == before
        return False

    def as_task(self, task_id: str) -> Task:
        known = self.known[task_id]
        tried = known.tried
        return Task(
            task_id,
            known.payload,
            tried.failures,
            tried.deliveries,
            tried.due,
            tried.token,
            tried.before + 1,
            tried.appointment,
        )

    def remove_letters(self, ids: list[str]) -> list[str]:
        found = [task_id for task_id in dict.fromkeys(ids) if task_id in self.dead]
        self.dead = [task_id for task_id in self.dead if task_id not in found]
        return found

    def ripe(self, place: str) -> list[str]:
        """Whose time has come, in order."""
        return [task_id for task_id, known in self.in_order(place) if known.at <= self.now]

    def in_order(self, place: str, after: int = 0) -> list[tuple[str, Known]]:
        """The tasks of a place later than ``after``: by time, then by the bytes of the id."""
        found = [
            (known.at, task_id.encode(errors="surrogateescape"), task_id)
            for task_id, known in self.known.items()
            if known.place == place and known.at > after
        ]
        return [(task_id, self.known[task_id]) for _, _, task_id in sorted(found)]

    def died_in_order(self, ids: list[str]) -> bool:
        """Whether these are the dead, none before one that died in an earlier millisecond."""
        died = [self.known[task_id].at for task_id in ids]
        return died == sorted(died) and sorted(ids) == sorted(self.dead)

    def modelled_state(self) -> State:
        content: State = {
            "scheduled": self.scores("scheduled"),
            "leased": self.scores("leased"),
            "letters": {task_id: self.known[task_id].letter for task_id in self.dead},
            "payloads": {
                task_id: known.payload for task_id, known in self.known.items() if known.payload
            },
            "tokens": {
                task_id: attempts(**vars(known.attempts))
                for task_id, known in self.known.items()
                if known.attempts
            },
            "alone": self.alone,
            "sweeper": self.sweeper and "{} {}".format(*self.sweeper),
            "paused": self.paused and "1",
            "seeded": self.seeded,
            "recurrence": self.recurrence and "{} {} {}".format(*self.recurrence),
        }
        return {key: value for key, value in content.items() if value}

    def scores(self, place: str) -> dict[str, int]:
        return {task_id: known.at for task_id, known in self.known.items() if known.place == place}
