"""Every operation in any order, against a model of the queue in plain Python."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.contract.state import State, state
from worker import Cancelled, DelayQueue, Due, LeaseLost, Scheduled, Task

IDS = st.sampled_from(["a", "b", "c", "d", "\udcff\r\n"])
SETS_OF_IDS = st.lists(IDS, min_size=1, max_size=3)
PAYLOADS = st.sampled_from([b"", b"\x00\xff", b"{}"])
DELAYS = st.integers(0, 40)


@dataclass
class Known:
    """A task as the model knows it."""

    place: str
    #: When it is due, or its lease ends; the time of death of a dead one.
    at: int
    payload: bytes = b""
    failures: int = 0
    deliveries: int = 0
    #: Kept for those that were put back; the lease of a leased one says it.
    first_due: int | None = None
    token: str = ""
    letter: dict[str, Any] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """Does the same to the queue and to the model, and compares all that is stored."""

    claimed: Bundle[Task] = Bundle("claimed")

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        client.flushall()
        self.queue = DelayQueue(client, "model")
        self.now = 1000
        self.known: dict[str, Known] = {}
        self.dead: list[str] = []
        self.paused = False

    # -- the clock, and putting in ---------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.schedule("a", 0, b"", only_if_absent=False)

    @rule(ms=st.integers(1, 30))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(task_id=IDS, delay=DELAYS, payload=PAYLOADS, only_if_absent=st.booleans())
    def schedule(self, task_id: str, delay: int, payload: bytes, *, only_if_absent: bool) -> None:
        due = self.now + delay
        known = self.known.get(task_id)
        if known is None:
            expected = Scheduled.CREATED
        elif (
            known.place == "dead"
            or only_if_absent
            or (known.place, known.at, known.payload) == ("scheduled", due, payload)
        ):
            expected = Scheduled.UNCHANGED
        else:
            expected = Scheduled.RESCHEDULED
        said = self.queue.schedule(task_id, due, payload, only_if_absent=only_if_absent)
        assert said is expected
        if expected is not Scheduled.UNCHANGED:
            self.known[task_id] = Known("scheduled", due, payload)

    @rule(ids=SETS_OF_IDS, delay=st.integers(-20, 40))
    def restore(self, ids: list[str], delay: int) -> None:
        restored = pending = 0
        due = self.now + delay
        for task_id in [] if self.paused else ids:
            known = self.known.get(task_id)
            if known is None:
                self.known[task_id] = Known("scheduled", due)
                restored += 1
            elif known.place == "leased" or (known.place == "scheduled" and known.at <= self.now):
                pending += 1
            elif known.place == "scheduled" and known.first_due is None:
                known.at = min(known.at, due)
        found = self.queue.restore([Due(task_id, delay) for task_id in ids], now_ms=self.now)
        assert found == (restored, pending, self.paused)

    @rule(task_id=IDS)
    def cancel(self, task_id: str) -> None:
        known = self.known.get(task_id)
        expected = Cancelled.MISSING
        if known and known.place == "scheduled":
            expected = Cancelled.REMOVED
            del self.known[task_id]
        elif known and known.place == "leased":
            expected = Cancelled.LEASED
        assert self.queue.cancel(task_id) is expected

    # -- a worker --------------------------------------------------------------------------

    @rule(target=claimed, limit=st.integers(1, 4), lease=st.integers(1, 40))
    def claim(self, limit: int, lease: int) -> Any:
        claim = self.queue.claim(limit, lease, now_ms=self.now)
        assert claim.paused == self.paused
        expected = [] if self.paused else [*self.ripe("leased"), *self.ripe("scheduled")][:limit]
        assert [task.id for task in claim.tasks] == expected
        for task in claim.tasks:
            known = self.known[task.id]
            assert known.at <= self.now, "early"
            known.deliveries += known.place == "leased"
            if known.place == "leased":
                first_due = _first_due(known)
            else:
                first_due = known.at if known.first_due is None else known.first_due
            assert task == Task(
                task.id,
                known.payload,
                known.failures,
                known.deliveries,
                first_due,
                task.token,
            )
            known.place, known.at = "leased", self.now + lease
            known.token = f"{task.token}{first_due}"
        if not self.paused:
            ends = [known.at for known in self.known.values() if known.place != "dead"]
            assert claim.next_in_ms == (max(0, min(ends) - self.now) if ends else None)
        return multiple(*claim.tasks)

    @rule(task=claimed, lease=st.integers(1, 40))
    def extend(self, task: Task, lease: int) -> None:
        if self.settles(task, lambda: self.queue.extend([task], lease, now_ms=self.now)):
            self.known[task.id].at = self.now + lease

    @rule(task=claimed)
    def ack(self, task: Task) -> None:
        if self.settles(task, lambda: self.queue.ack([task])):
            del self.known[task.id]

    @rule(task=claimed, delay=DELAYS)
    def fail(self, task: Task, delay: int) -> None:
        if self.settles(
            task, lambda: self.queue.retry([(task, delay)], failed=True, now_ms=self.now)
        ):
            self.put_back(task, self.now + delay).failures += 1

    @rule(task=claimed, delay=DELAYS)
    def come_again(self, task: Task, delay: int) -> None:
        if self.settles(task, lambda: self.queue.retry([(task, delay)], now_ms=self.now)):
            self.put_back(task, self.now + delay).first_due = self.now + delay

    @rule(task=claimed)
    def release(self, task: Task) -> None:
        if self.settles(task, lambda: self.queue.release([task])):
            self.put_back(task, _first_due(self.known[task.id]))

    @rule(task=claimed)
    def dead_letter(self, task: Task) -> None:
        burial = (task, "bad", ValueError("x"))
        if self.settles(task, lambda: self.queue.dead_letter([burial], now_ms=self.now)):
            known = self.known[task.id]
            known.place, known.at, known.token = "dead", self.now, ""
            known.letter = {
                "reason": "bad",
                "error": "ValueError: x",
                "traceback": "ValueError: x\n",
                "failures": task.failures,
                "deliveries": task.deliveries,
                "due_at_ms": task.due_at_ms,
                "died_at_ms": self.now,
            }
            self.dead.insert(0, task.id)

    # -- an operator -----------------------------------------------------------------------

    @rule(ids=SETS_OF_IDS)
    def requeue(self, ids: list[str]) -> None:
        found = self.remove_letters(ids)
        for task_id in found:
            payload = self.known[task_id].payload
            self.known[task_id] = Known("scheduled", self.now, payload)
        assert self.queue.requeue(ids, now_ms=self.now) == found

    @rule(ids=SETS_OF_IDS)
    def purge(self, ids: list[str]) -> None:
        found = self.remove_letters(ids)
        for task_id in found:
            del self.known[task_id]
        assert self.queue.purge(ids) == found

    @rule(paused=st.booleans())
    def pause_or_resume(self, *, paused: bool) -> None:
        (self.queue.pause if paused else self.queue.resume)()
        self.paused = paused

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def each_task_is_where_the_model_says_and_nothing_else_is_stored(self) -> None:
        stored = state(self.queue)
        assert stored == self.modelled_state()
        places = [*stored.get("scheduled", {}), *stored.get("leased", {}), *stored.get("dead", [])]
        assert sorted(places) == sorted(self.known), "one place for each"

    @invariant()
    def the_stats_count_the_same(self) -> None:
        stats = self.queue.stats(now_ms=self.now)
        waiting = [known.at for known in self.known.values() if known.place == "scheduled"]
        assert stats.scheduled == len(waiting)
        assert stats.due == sum(at <= self.now for at in waiting)
        assert stats.leased == sum(known.place == "leased" for known in self.known.values())
        assert stats.dead == len(self.dead)
        assert stats.oldest_due_age_ms == max([0, *(self.now - at for at in waiting)])

    # -- the model -------------------------------------------------------------------------

    def settles(self, task: Task, settle: Any) -> bool:
        """Whether the lease was valid; when it was not, nothing may have changed."""
        known = self.known.get(task.id)
        valid = known is not None and known.token[:64] == task.token
        before = state(self.queue)
        if valid:
            settle()
            return True
        with pytest.raises(LeaseLost) as lost:
            settle()
        assert lost.value.ids == (task.id,)
        assert state(self.queue) == before
        return False

    def put_back(self, task: Task, due: int) -> Known:
        known = self.known[task.id]
        known.first_due = _first_due(known)
        known.place, known.at, known.token = "scheduled", due, ""
        return known

    def remove_letters(self, ids: list[str]) -> list[str]:
        found = [task_id for task_id in dict.fromkeys(ids) if task_id in self.dead]
        self.dead = [task_id for task_id in self.dead if task_id not in found]
        return found

    def ripe(self, place: str) -> list[str]:
        """What a claim takes from a place, in order: by time, then by the bytes of the id."""
        ripe = [
            (known.at, task_id.encode(errors="surrogateescape"), task_id)
            for task_id, known in self.known.items()
            if known.place == place and known.at <= self.now
        ]
        return [task_id for _, _, task_id in sorted(ripe)]

    def modelled_state(self) -> State:
        content: State = {
            "scheduled": self.column("at", "scheduled"),
            "leased": self.column("at", "leased"),
            "dead": self.dead,
            "letters": self.column("letter"),
            "payloads": self.column("payload"),
            "tokens": self.column("token"),
            "failures": self.column("failures"),
            "deliveries": self.column("deliveries"),
            "first_due": {
                task_id: known.first_due
                for task_id, known in self.known.items()
                if known.first_due is not None
            },
            "paused": b"1" if self.paused else b"",
        }
        return {key: value for key, value in content.items() if value}

    def column(self, name: str, place: str | None = None) -> dict[str, Any]:
        return {
            task_id: getattr(known, name)
            for task_id, known in self.known.items()
            if (known.place == place if place else getattr(known, name))
        }


def _first_due(leased: Known) -> int:
    return int(leased.token[64:])


def test_the_queue_does_what_its_model_says_in_any_order(client: redis.Redis) -> None:
    run_state_machine_as_test(
        lambda: Machine(client),  # type: ignore[arg-type]  # any callable that makes one will do
        settings=settings(
            max_examples=80,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
