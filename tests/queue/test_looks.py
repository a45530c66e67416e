"""What an operator reads: dead letters in pages, and where a task is."""

from collections.abc import Callable

import pytest

from tests.kit.queue_state import state
from tests.kit.queue_steps import PUTS, bury
from tests.kit.settling import dead_letter, retry
from worker import DelayQueue, Place, Settlement, TaskState, Verb


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
    dead_letter(queue, [(task, "bad", None)], now_ms=1)
    assert [letter.payload for letter in queue.letters(["a"])] == [b"large"]
    assert [letter.payload for letter in queue.letters(["a"], with_payloads=False)] == [b""]


def test_the_newest_dead_ids_come_first_while_others_die(queue: DelayQueue) -> None:
    bury(queue, *(f"{n:03}" for n in range(250)))
    seen: list[str] = []
    for page in queue.newest_dead_ids():
        bury(queue, f"new after {len(seen)}")
        seen += page
    assert seen == [f"{n:03}" for n in range(249, -1, -1)]


def test_a_task_is_looked_up_wherever_it_is(queue: DelayQueue) -> None:
    bury(queue, "dead")
    queue.schedule("held", 1000)
    [task] = queue.claim(1, 500, now_ms=1000).tasks
    retry(queue, [(task, 0)], Verb.FAILED, now_ms=1100)
    [task] = queue.claim(1, 500, now_ms=1200).tasks
    queue.schedule("waiting", 3000)
    before = state(queue)
    assert queue.look_up("waiting", now_ms=1300) == TaskState(Place.SCHEDULED, 1700, 0, 0, 0)
    assert queue.look_up("waiting", now_ms=3100) == TaskState(Place.SCHEDULED, -100, 0, 0, 0)
    held = TaskState(Place.LEASED, 400, 1, 0, 1, held_ms=100, lease=task.token[:12])
    assert queue.look_up("held", now_ms=1300) == held
    dead = queue.look_up("dead")
    assert dead is not None
    assert (dead.place, dead.in_ms) == (Place.DEAD, None)
    assert queue.look_up("nobody") is None
    assert [*queue.look_up_many(["nobody", "waiting", "dead"])] == ["waiting", "dead"]
    assert state(queue) == before


@pytest.mark.parametrize("put", [each for each in PUTS if each is not Verb.FAILED])
def test_why_a_task_was_put_back_is_told_until_it_is_put_back_without_a_reason(
    queue: DelayQueue, put: Verb
) -> None:
    def put_back(verb: Verb, error: Exception | None = None) -> TaskState:
        [task] = queue.claim(1, 500, now_ms=2000).tasks
        queue.settle([Settlement([task], verb, 0, error)], now_ms=2000)
        return queue.look_up_many(["a"], now_ms=2000)["a"]

    queue.schedule("a", 1000)
    for number in "12":
        error = OSError(f"cancelled: Verbindung \u2019abgelehnt\u2019 {number}\nand more")
        found = put_back(Verb.FAILED, error)
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
