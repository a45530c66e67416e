"""One round of the sweep after another, without its thread."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import fakeredis
import pytest
import redis
from structlog.testing import capture_logs

from tests.contract.state import state
from worker import DelayQueue, Due, Flow, Task, Unavailable
from worker.sweep import GRACE_SECONDS, Sweeper


class Records:
    """What an application's own records would say is waiting, in pages of two."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}
        self.asked: list[tuple[float | None, float]] = []
        self.pages_read = 0
        self.down = False

    def __call__(self, after: float | None, before: float) -> Iterator[list[Due]]:
        self.asked.append((after, before))
        if self.down:
            raise Unavailable("the records do not answer")
        rows = sorted((delay, name) for name, delay in self.waiting.items())
        found = [
            Due(name, delay)
            for delay, name in rows
            if (after is None or delay > after * 1000) and delay <= before * 1000
        ]
        for start in range(0, len(found), 2):
            self.pages_read += 1
            yield found[start : start + 2]


class Place:
    """A sweeper with all that it touches."""

    def __init__(self) -> None:
        self.server = fakeredis.FakeServer()
        self.client = fakeredis.FakeRedis(server=self.server, protocol=2)
        self.queue = DelayQueue(self.client, "swept")
        self.claims = DelayQueue(self.client, "swept")
        self.records = Records()
        self.handled: list[str] = []
        self.poison: set[str] = set()
        self.down = False
        self.alarm = threading.Event()
        self.stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self.sweeper = Sweeper(
            Flow(name="swept", handler=self.handle, lookahead_seconds=30),
            self.records,
            queue=self.queue,
            claims=self.claims,
            alarm=self.alarm,
            stopping=self.stopping,
            counts=self.counts,
        )

    def handle(self, tasks: Sequence[Task]) -> None:
        if self.down:
            raise Unavailable("no answer")
        if self.poison & {task.id for task in tasks}:
            raise ValueError("poison")
        self.handled += [task.id for task in tasks]
        for task in tasks:
            del self.records.waiting[task.id]

    def redis_goes(self) -> None:
        self.server.connected = False

    def redis_returns(self) -> None:
        self.server.connected = True


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.client.close()


def test_what_redis_lost_is_restored_and_left_to_the_claims(place: Place) -> None:
    place.records.waiting = {"a": -5000, "b": -4000, "c": -3000}
    place.sweeper.sweep()
    assert set(state(place.queue)["scheduled"]) == {"a", "b", "c"}
    assert place.counts == {"restored": 3}
    assert place.handled == []


def test_a_task_overdue_by_less_than_the_grace_is_left_to_the_claims(place: Place) -> None:
    place.records.waiting = {"a": -500}
    place.sweeper.sweep()
    assert place.records.asked == [(None, -GRACE_SECONDS)]
    assert state(place.queue) == {}


def test_the_lookahead_restores_what_is_due_before_the_lookahead_after_next(place: Place) -> None:
    place.records.waiting = {"soon": 100, "later": 59_000, "too far": 61_000}
    place.sweeper.sweep()
    assert state(place.queue) == {}
    place.sweeper.sweep(lookahead=True)
    assert set(state(place.queue)["scheduled"]) == {"soon", "later"}


def test_a_page_that_the_claims_are_about_to_take_ends_the_round(place: Place) -> None:
    place.records.waiting = dict.fromkeys("abcdef", -5000)
    place.sweeper.sweep()
    assert place.records.pages_read == 3
    place.sweeper.sweep()
    assert place.records.pages_read == 4


def test_claims_are_woken_for_what_is_overdue_in_case_their_own_wake_up_was_lost(
    place: Place,
) -> None:
    place.sweeper.sweep()
    assert not place.alarm.is_set()
    place.records.waiting = {"a": -5000}
    for _restored_then_pending in range(2):
        place.sweeper.sweep()
        assert place.alarm.is_set()
        place.alarm.clear()
    [task] = place.queue.claim(9, 1000).tasks
    place.queue.dead_letter([(task, "bad", None)])
    place.sweeper.sweep()
    assert not place.alarm.is_set()


def test_pages_of_dead_tasks_and_tasks_in_backoff_do_not_end_the_round(place: Place) -> None:
    place.records.waiting = {"a": -9000, "b": -8000, "c": -7000, "lost": -2000}
    place.queue.schedule_many((name, 1, b"") for name in "abc")
    a, *others = place.queue.claim(9, 1000).tasks
    place.queue.dead_letter([(a, "bad", None)])
    place.queue.retry([(task, 60_000) for task in others], failed=True)
    place.sweeper.sweep()
    assert place.counts == {"restored": 1}
    assert "lost" in state(place.queue)["scheduled"]


def test_while_redis_is_away_what_is_overdue_goes_to_the_handler(place: Place) -> None:
    place.redis_goes()
    place.records.waiting = {"a": -5000, "b": -4000, "c": -1500, "soon": 500}
    place.sweeper.sweep(lookahead=True)
    assert place.handled == ["a", "b", "c"]
    assert place.counts == {"handled without Redis": 3}
    place.records.waiting["soon"] = 0
    place.sweeper.sweep()
    assert place.handled == ["a", "b", "c", "soon"]


def test_a_task_that_is_not_due_is_never_handed_to_the_handler(place: Place) -> None:
    place.redis_goes()
    place.records.waiting = {"due": 0, "early": 1}
    place.sweeper._records = lambda *_: [[Due("due", 0), Due("early", 1)]]
    place.sweeper.sweep()
    assert place.handled == ["due"]


def test_redis_is_asked_once_a_round_while_it_is_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[Due]] = []

    def silent(page: Sequence[Due]) -> None:
        asked.append(page)
        raise redis.TimeoutError

    monkeypatch.setattr(place.queue, "restore", silent)
    place.records.waiting = dict.fromkeys("abcdef", -5000)
    place.sweeper.sweep()
    assert len(asked) == 1
    assert sorted(place.handled) == list("abcdef")


@pytest.mark.parametrize(
    "error",
    [redis.ConnectionError, redis.TimeoutError, redis.ResponseError, redis.ReadOnlyError],
)
def test_any_refusal_of_redis_leads_to_the_handler(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(_page: Sequence[Due]) -> None:
        raise error("OOM command not allowed")

    monkeypatch.setattr(place.queue, "restore", refuse)
    place.records.waiting = {"a": -5000}
    place.sweeper.sweep()
    assert place.handled == ["a"]


def test_poison_is_isolated_while_redis_is_away_and_skipped_until_it_is_back(place: Place) -> None:
    place.redis_goes()
    place.poison = {"b"}
    place.records.waiting = {"a": -3000, "b": -3000, "c": -2000}
    with capture_logs() as logged:
        place.sweeper.sweep()
    assert place.handled == ["a", "c"]
    [failure] = [line for line in logged if line["event"] == "task failed"]
    assert (failure["queue"], failure["id"]) == ("swept", "b")
    assert isinstance(failure["exc_info"], Exception)
    place.poison = set()
    place.sweeper.sweep()
    assert place.handled == ["a", "c"]
    place.redis_returns()
    place.sweeper.sweep()
    assert set(state(place.queue)["scheduled"]) == {"b"}
    place.redis_goes()
    place.sweeper.sweep()
    assert place.handled == ["a", "c", "b"]


def test_the_claims_do_the_work_again_once_redis_is_back(place: Place) -> None:
    place.redis_goes()
    place.records.waiting = {"a": -5000}
    place.sweeper.sweep()
    place.redis_returns()
    place.records.waiting = {"b": -5000, "c": -500}
    place.sweeper.sweep()
    assert place.handled == ["a"]
    assert set(state(place.queue)["scheduled"]) == {"b", "c"}
    assert place.records.asked[-1] == (None, 0.0)  # no grace until Redis is known to answer
    place.sweeper.sweep()
    assert place.records.asked[-1] == (None, -GRACE_SECONDS)


def test_the_lookahead_finds_out_that_redis_is_back_when_nothing_is_overdue(place: Place) -> None:
    place.redis_goes()
    place.records.waiting = {"a": -5000}
    place.sweeper.sweep()
    place.redis_returns()
    place.records.waiting = {"soon": 9000}
    place.sweeper.sweep(lookahead=True)
    assert set(state(place.queue)["scheduled"]) == {"soon"}


def test_nothing_is_restored_or_handled_while_the_queue_is_paused(place: Place) -> None:
    place.queue.pause()
    place.records.waiting = {"a": -5000}
    place.sweeper.sweep(lookahead=True)
    place.redis_goes()
    place.sweeper.sweep(lookahead=True)
    assert place.handled == []
    place.redis_returns()
    assert state(place.queue) == {"paused": b"1"}


def test_a_pause_that_only_a_claim_has_seen_holds_while_redis_is_away(place: Place) -> None:
    place.queue.pause()
    place.claims.claim(1, 1000)
    place.redis_goes()
    place.records.waiting = {"a": -5000}
    place.sweeper.sweep()
    assert place.handled == []


def test_a_pause_whose_end_only_a_claim_has_seen_does_not_hold_while_redis_is_away(
    place: Place,
) -> None:
    place.records.waiting = {"a": -5000}
    place.queue.pause()
    place.sweeper.sweep()
    place.queue.resume()
    place.claims.claim(1, 1000)
    place.redis_goes()
    place.sweeper.sweep()
    assert place.handled == ["a"]


def test_a_handler_that_cannot_work_is_tried_again_in_the_next_round(place: Place) -> None:
    place.redis_goes()
    place.down = True
    place.records.waiting = {"a": -5000, "b": -5000, "c": -5000}
    place.sweeper.sweep()
    assert place.records.pages_read == 1
    assert place.handled == []
    place.down = False
    place.sweeper.sweep()
    assert place.handled == ["a", "b", "c"]


def test_records_that_cannot_be_read_are_read_again_in_the_next_round(place: Place) -> None:
    place.records.waiting = {"a": -5000}
    place.records.down = True
    place.sweeper.sweep()
    assert state(place.queue) == {}
    place.records.down = False
    place.sweeper.sweep()
    assert set(state(place.queue)["scheduled"]) == {"a"}


def test_a_stopping_sweeper_hands_on_no_more_pages(place: Place) -> None:
    place.records.waiting = dict.fromkeys("abcd", -5000)
    place.stopping.set()
    place.sweeper.sweep()
    assert state(place.queue) == {}
    assert place.handled == []
