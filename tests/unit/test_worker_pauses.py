"""A pause that is kept with the records holds whatever Redis says, and so does not knowing of one."""

import fakeredis
import pytest

from tests.unit.engine import Clock, ClockedQueue
from worker import Flow, Pause, Unavailable
from worker.runtime.pauses import KNOWN_SECONDS, LOOK_SECONDS, PauseRound, PauseWatch, pause, resume


class Kept:
    """Pauses in memory, which a test makes unavailable."""

    def __init__(self) -> None:
        self.found: Pause | None = None
        self.error: BaseException | None = None

    def find(self) -> Pause | None:
        if self.error:
            raise self.error
        return self.found

    def begin(self, reason: str, by: str) -> None:
        self.find()
        self.found = Pause(reason, by)

    def end(self) -> None:
        self.find()
        self.found = None


class Watched:
    """A watch on a clock that the test moves, with a queue on a fake Redis."""

    def __init__(self, *, kept: bool = True) -> None:
        self.clock = Clock()
        self.pauses = Kept()
        self.redis = fakeredis.FakeServer()
        self.queue = ClockedQueue("a", self.clock, self.redis)
        flow = Flow(name="a", handler=lambda _: None, pauses=self.pauses if kept else None)
        self.watch = PauseWatch(flow, self.queue)
        self.rounds = PauseRound(self.queue.environment.clock)
        self.rounds.add(self.pauses, self.watch, self._count)
        self.ended = 0

    def _count(self) -> None:
        self.ended += 1

    @property
    def holds(self) -> bool:
        return self.watch.holds(self.clock.now)

    def look(self) -> bool:
        """Look as a worker does all the time; return whether nothing may be claimed."""
        pause = self.rounds.round()
        self.rounds.tell_redis()
        self.clock.move(pause)
        return self.holds


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_flow_that_keeps_no_pauses_is_not_held() -> None:
    watched = Watched(kept=False)
    assert not watched.holds
    assert watched.watch.allows()


def test_nothing_is_claimed_before_the_first_look(watched: Watched) -> None:
    assert watched.holds
    assert not watched.look()
    assert watched.ended == 1, "the lane is told that it may claim"
    assert not watched.look()
    assert watched.ended == 1


def test_a_pause_holds_from_one_look_to_the_next(watched: Watched) -> None:
    watched.look()
    watched.pauses.begin("why", "anna")
    assert watched.look()
    assert not watched.watch.allows()
    watched.pauses.end()
    assert not watched.look()
    assert watched.ended == 2


def test_who_cannot_know_claims_nothing_after_a_while(watched: Watched) -> None:
    watched.look()
    watched.pauses.error = Unavailable("gone")
    assert not watched.watch.allows(), "without Redis, nothing else would tell"
    looks = round(KNOWN_SECONDS / LOOK_SECONDS)
    assert [watched.look() for _ in range(looks)] == [False] * (looks - 1) + [True]
    watched.pauses.error = None
    assert not watched.look()
    assert watched.ended == 2


@pytest.mark.parametrize(
    "text", ["x" * 201, "a\x00b", "two\nlines", "a\u202eb", "a\udcffb"], ids=ascii
)
def test_who_paused_and_why_is_one_line(watched: Watched, text: str) -> None:
    for said in ({"reason": text}, {"by": text}):
        with pytest.raises(ValueError, match=r"reason|utf-8"):
            pause(watched.queue, watched.pauses, **said)
    assert watched.queue.find_pause() is None
    assert watched.pauses.find() is None


def test_a_pause_that_redis_lost_is_put_back(watched: Watched) -> None:
    pause(watched.queue, watched.pauses, reason="why", by="anna")
    watched.queue.destroy()
    watched.look()
    found = watched.queue.find_pause()
    assert found is not None
    assert (found.reason, found.by) == ("why", "anna")
    resume(watched.queue, watched.pauses)
    watched.look()
    assert watched.queue.find_pause() is None


def test_what_cannot_be_put_back_ends_no_worker(watched: Watched) -> None:
    watched.pauses.begin("why", "anna")
    watched.rounds.round()
    for error in (KeyError("a column"), BaseException("a panic")):
        watched.pauses.error = error
        watched.rounds.tell_redis()
    assert watched.queue.find_pause() is None


def test_a_pause_that_ended_in_between_is_not_put_back(watched: Watched) -> None:
    watched.pauses.begin("why", "anna")
    original = watched.queue.pause

    def late(reason: str, by: str) -> None:
        watched.pauses.end()
        original(reason, by)

    watched.queue.pause = late  # type: ignore[method-assign, assignment]
    watched.look()
    assert watched.queue.find_pause() is None


class KeptOfQueue(Kept):
    """One of several pauses in one place."""

    place = "table"

    def __init__(self, queue: str, all_: dict[str, Pause]) -> None:
        super().__init__()
        self.queue, self.all, self.queries = queue, all_, 0

    def find_all(self) -> dict[str, Pause]:
        self.queries += 1
        if self.error:
            raise self.error
        return self.all


def test_pauses_in_one_place_are_read_in_one_query() -> None:
    clock, found = Clock(), {"b": Pause("why", "anna")}
    kept = [KeptOfQueue(name, found) for name in "abc"]
    redis = fakeredis.FakeServer()
    flows = [Flow(name=each.queue, handler=lambda _: None, pauses=each) for each in kept]
    watches = [PauseWatch(flow, ClockedQueue(flow.name, clock, redis)) for flow in flows]
    rounds = PauseRound(lambda: clock.now)
    for each, watch in zip(kept, watches, strict=True):
        rounds.add(each, watch, lambda: None)
    rounds.round()
    assert [watch.holds(clock.now) for watch in watches] == [False, True, False]
    found.clear()
    kept[0].error = Unavailable("gone")
    rounds.round()
    assert watches[1].holds(clock.now), "nobody could read that it has ended"
    kept[0].error = None
    rounds.round()
    assert not watches[1].holds(clock.now)
    assert [each.queries for each in kept] == [3, 0, 0]


def test_a_redis_that_hangs_delays_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(), {"a": Pause("why", "anna")}
    rounds, watches = PauseRound(clock), {}
    for name in "ab":
        kept, queue = KeptOfQueue(name, found), ClockedQueue(name, clock)
        monkeypatch.setattr(queue, "find_pause", lambda: clock.move(KNOWN_SECONDS + 1))
        flow = Flow(name=name, handler=lambda _: None, pauses=kept)
        watches[name] = PauseWatch(flow, queue)
        rounds.add(kept, watches[name], lambda: None)
    rounds.round()
    assert watches["a"].holds(clock.now)
    assert not watches["b"].holds(clock.now)


def test_a_pause_begins_without_redis_and_without_records(watched: Watched) -> None:
    watched.pauses.error = Unavailable("gone")
    with pytest.raises(Unavailable) as raised:
        pause(watched.queue, watched.pauses, reason="why", by="anna")
    assert "in Redis only" in str(raised.value.__notes__)
    assert watched.queue.find_pause() is not None
    watched.pauses.error = None
    watched.redis.connected = False
    pause(watched.queue, watched.pauses, reason="then", by="anna")
    assert watched.pauses.find() == Pause("then", "anna")
