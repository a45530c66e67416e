"""A pause that is kept with the records holds whatever Redis says, and so does not knowing of one."""

import fakeredis
import pytest

from tests.kit.engine import Clock, ClockedQueue
from worker import Flow, Pause, Unavailable
from worker.runtime.pauses import KNOWN_SECONDS, LOOK_SECONDS, PauseWatch, pause, resume


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
        self.ended = 0

    def _count(self) -> None:
        self.ended += 1

    @property
    def holds(self) -> bool:
        return self.watch.holds(self.clock.now)

    def look(self) -> bool:
        """Look as a worker does all the time; return whether nothing may be claimed."""
        self.clock.move(self.watch.round(self._count))
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


def test_a_pause_begins_and_ends_without_redis(watched: Watched) -> None:
    watched.redis.connected = False
    pause(watched.queue, watched.pauses, reason="why", by="anna")
    assert watched.look()
    resume(watched.queue, watched.pauses)
    assert not watched.look()
    watched.redis.connected = True
    watched.queue.pause()
    resume(watched.queue, watched.pauses)
    assert watched.queue.find_pause() is None


def test_a_pause_that_cannot_be_kept_is_none(watched: Watched) -> None:
    watched.pauses.error = Unavailable("gone")
    with pytest.raises(Unavailable):
        pause(watched.queue, watched.pauses)
    assert watched.queue.find_pause() is None
