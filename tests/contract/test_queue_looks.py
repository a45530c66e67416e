"""What an operator reads: dead letters in pages, and where a task is."""

from collections.abc import Callable

import pytest

from tests.contract.state import state
from tests.contract.steps import bury
from worker import DelayQueue, Place, Put, TaskState


def test_letters_are_read_by_id_and_in_that_order(
    queue: DelayQueue,
) -> None:
    bury(queue, *(f"{n:03}" for n in range(250)))
    queue.schedule("alive", 2**50)
    ids = [f"{n:03}" for n in range(249, -1, -1)]
    found = queue.letters([*ids, "alive", "nobody", ids[0]])
    assert [letter.id for letter in found] == ids
    assert {letter.story["reason"] for letter in found} == {"bad"}


def test_payloads_are_read_only_when_they_are_asked_for(queue: DelayQueue) -> None:
    queue.schedule("a", 1, b"large")
    [task] = queue.claim(1, 10, now_ms=1).tasks
    queue.dead_letter([(task, "bad", None)], now_ms=1)
    assert [letter.payload for letter in queue.letters(["a"])] == [b"large"]
    assert [letter.payload for letter in queue.letters(["a"], with_payloads=False)] == [b""]


def test_the_newest_dead_ids_come_first_while_others_die(queue: DelayQueue) -> None:
    bury(queue, *(f"{n:03}" for n in range(250)))
    seen: list[str] = []
    for page in queue.newest_dead_ids():
        bury(queue, f"new after {len(seen)}")
        seen += page
    assert seen == [f"{n:03}" for n in range(249, -1, -1)]


def test_the_newest_dead_ids_begin_where_an_earlier_page_ended(queue: DelayQueue) -> None:
    bury(queue, *(f"{n:03}" for n in range(250)))
    first, *_ = queue.newest_dead_ids()
    [last] = queue.letters([first[-1]])
    end = (last.story["died_at_ms"], last.id)

    def rest() -> list[str]:
        return [task_id for page in queue.newest_dead_ids(end) for task_id in page]

    older = [f"{n:03}" for n in range(149, -1, -1)]
    assert rest() == older
    bury(queue, "newer")
    queue.purge(first[:50])
    assert rest() == older
    queue.requeue(
        [last.id]
    )  # those that died in the same millisecond are read again, none is skipped
    found = rest()
    assert found[-len(older) :] == older
    assert {*found} <= {*first, *older, "newer"}
    assert [*queue.newest_dead_ids((0, "a"))] == []


def test_a_page_may_end_between_two_deaths_of_a_millisecond(queue: DelayQueue) -> None:
    bury(queue, "a", "b", "c")
    queue._redis.zadd(queue.keys.dead, {"a": 1.25, "b": 1.5, "c": 2.75})
    assert [*queue.newest_dead_ids((2, "c"))] == [["b", "a"]]
    assert [*queue.newest_dead_ids((1, "b"))] == [["a"]]
    assert [*queue.newest_dead_ids((1, "gone"))] == [["b", "a"]]


def test_a_task_is_looked_up_wherever_it_is(queue: DelayQueue) -> None:
    bury(queue, "dead")
    queue.schedule("held", 1000)
    [task] = queue.claim(1, 500, now_ms=1000).tasks
    queue.retry([(task, 0)], Put.FAILED, now_ms=1100)
    queue.claim(1, 500, now_ms=1200)
    queue.schedule("waiting", 3000)
    before = state(queue)
    assert queue.look_up("waiting", now_ms=1300) == TaskState(Place.SCHEDULED, 1700, 0, 0, 0)
    assert queue.look_up("waiting", now_ms=3100) == TaskState(Place.SCHEDULED, -100, 0, 0, 0)
    assert queue.look_up("held", now_ms=1300) == TaskState(Place.LEASED, 400, 1, 0, 1)
    dead = queue.look_up("dead")
    assert dead is not None
    assert (dead.place, dead.in_ms) == (Place.DEAD, None)
    assert queue.look_up("nobody") is None
    assert [*queue.look_up_many(["nobody", "waiting", "dead"])] == ["waiting", "dead"]
    assert state(queue) == before


@pytest.mark.parametrize("put", [each for each in Put if each is not Put.FAILED])
def test_why_a_task_was_put_back_is_told_until_it_is_put_back_without_a_reason(
    queue: DelayQueue, put: Put
) -> None:
    def put_back(how: Put, *errors: Exception) -> TaskState:
        [task] = queue.claim(1, 500, now_ms=2000).tasks
        queue.retry([(task, 0)], how, errors=dict.fromkeys("a", *errors), now_ms=2000)
        return queue.look_up_many(["a"], now_ms=2000)["a"]

    queue.schedule("a", 1000)
    for number in "12":
        error = OSError(f"cancelled: Verbindung \u2019abgelehnt\u2019 {number}\nand more")
        found = put_back(Put.FAILED, error)
        assert found.error == f"OSError: cancelled: Verbindung \u2019abgelehnt\u2019 {number}"
    assert str(found) == f"failed 2 times: {found.error}; next try in 0 s"
    assert put_back(put).error == ""


def test_the_servers_time_is_in_ms(queue: DelayQueue) -> None:
    assert abs(queue.server_time_ms() - queue.claim(1, 1).now_ms) < 60_000


@pytest.mark.parametrize("method", [DelayQueue.requeue, DelayQueue.purge])
def test_few_letters_are_removed_in_one_call(
    queue: DelayQueue,
    monkeypatch: pytest.MonkeyPatch,
    method: Callable[[DelayQueue, list[str]], list[str]],
) -> None:
    ids = [f"{n:03}" for n in range(120)]
    bury(queue, *ids)
    sizes: list[int] = []
    run = queue._run

    def noted(name: str, now_ms: int | None, *args: object) -> object:
        sizes.append(len([arg for arg in args if isinstance(arg, bytes)]))
        return run(name, now_ms, *args)

    monkeypatch.setattr(queue, "_run", noted)
    assert method(queue, ids) == ids
    assert sizes == [50, 50, 20]
