"""Restoring what Redis lost, who does it, clocks that were set back, and which workers live."""

from typing import Any

import pytest
import redis

from tests.contract.conftest import REAL
from tests.contract.state import attempts, state
from tests.contract.steps import bury, one
from worker import DelayQueue, Due
from worker.queue.formats import SLICE
from worker.queue.replies import Put, Restored
from worker.queue.worker_side import FORGET_WORKERS_MS

HOUR = 3_600_000
#: When the clock is right; an hour ahead is this and an hour.
NOW = 10 * HOUR


def nothing(*, due: int = 0, parked: int = 0, paused: bool = False) -> Restored:
    """Nothing had to be restored."""
    return Restored((), due, parked, paused)


# -- what is restored ----------------------------------------------------------------------


def test_a_lost_task_is_restored_at_its_time_with_its_payload(queue: DelayQueue) -> None:
    found = queue.restore([Due("overdue", -300, b"\x00\xff"), Due("ahead", 700)], now_ms=1000)
    assert found == Restored(lost=("overdue", "ahead"), due=0, parked=0, paused=False)
    assert state(queue) == {
        "scheduled": {"overdue": 700, "ahead": 1700},
        "payloads": {"overdue": b"\x00\xff"},
    }


def test_a_task_that_is_there_keeps_its_payload(queue: DelayQueue) -> None:
    queue.schedule_many([("a", 9000, b"kept"), ("b", 9000, b"")])
    queue.restore([Due("a", 0, b"other"), Due("b", 0, b"other")], now_ms=1000)
    assert state(queue) == {"scheduled": {"a": 1000, "b": 1000}, "payloads": {"a": b"kept"}}


def test_a_scheduled_task_is_brought_forward_and_never_put_back(queue: DelayQueue) -> None:
    queue.schedule_many([("late", 9000, b""), ("soon", 1500, b""), ("due", 900, b"")])
    waiting = [Due(name, 1000) for name in ("late", "soon", "due")]
    assert queue.restore(waiting, now_ms=1000) == nothing(due=1)
    assert state(queue) == {"scheduled": {"late": 2000, "soon": 1500, "due": 900}}


def test_a_task_late_by_a_moment_counts_as_on_time(queue: DelayQueue) -> None:
    """It was scheduled after a delay, which began a moment after its record was written."""
    queue.schedule_many([("soon", 2100, b""), ("overdue", 1050, b""), ("late", 2101, b"")])
    waiting = [Due("soon", 1000), Due("overdue", -50), Due("late", 1000)]
    assert queue.restore(waiting, look_only=True, now_ms=1000).lost == ("late",)
    assert queue.restore(waiting, now_ms=1000) == nothing()
    assert state(queue) == {"scheduled": {"soon": 2100, "overdue": 1050, "late": 2000}}


def test_restoring_leaves_leased_and_dead_tasks_as_they_are(queue: DelayQueue) -> None:
    bury(queue, "dead")
    queue.schedule("leased", 1000, b"x")
    queue.claim(1, 1000, now_ms=1000)
    before = state(queue)
    waiting = [Due("dead", -1, b"y"), Due("leased", -1, b"y")]
    assert queue.restore(waiting, now_ms=1001) == nothing(parked=1)
    assert state(queue) == before


@pytest.mark.parametrize("put", [Put.FAILED, Put.AGAIN])
def test_a_task_put_off_after_its_time_had_come_is_left_alone(queue: DelayQueue, put: Put) -> None:
    """Its handler or backoff has looked; the records say no more than that it is overdue."""
    queue.schedule("a", NOW)
    queue.retry([(one(queue, NOW), 60_000)], put, now_ms=NOW)
    before = state(queue)
    for later in (0, 1, 30_000, 59_999):
        overdue = Due("a", -later)
        assert queue.restore([overdue], now_ms=NOW + later) == nothing(parked=1)
        assert state(queue) == before
    assert queue.restore([Due("a", -60_000)], now_ms=NOW + 60_000) == nothing(due=1)
    assert state(queue) == before


def test_a_task_put_off_before_its_time_is_brought_forward(
    queue: DelayQueue,
) -> None:
    """It was claimed early by its records: they moved meanwhile, so they know better."""
    queue.schedule("a", NOW)
    queue.retry([(one(queue, NOW), 60_000)], Put.AGAIN, now_ms=NOW)
    assert queue.restore([Due("a", 5000)], now_ms=NOW) == nothing()
    assert state(queue)["scheduled"] == {"a": NOW + 5000}


def test_a_retry_does_not_hide_what_was_written_after_its_claim(queue: DelayQueue) -> None:
    queue.schedule("a", NOW)
    task = one(queue, NOW)  # the handler reads: in an hour; then the record says: in 5 s
    queue.retry([(task, HOUR)], Put.AGAIN, now_ms=NOW + 9000)
    assert queue.restore([Due("a", -5000)], now_ms=NOW + 10_000) == nothing()
    assert state(queue)["scheduled"] == {"a": NOW + 5000}


def test_only_the_first_rows_in_a_row_count_as_resting(queue: DelayQueue) -> None:
    bury(queue, "a", "b", "d")
    queue.schedule("c", 1000)
    waiting = [Due(name, -1) for name in "abcd"]
    assert queue.restore(waiting, now_ms=1000) == nothing(due=1, parked=2)
    assert queue.restore(waiting[2:], now_ms=1000) == nothing(due=1)
    assert queue.restore(waiting[3:], now_ms=1000) == nothing(parked=1)


def test_a_paused_queue_restores_nothing(queue: DelayQueue) -> None:
    queue.pause()
    before = state(queue)
    assert queue.restore([Due("a", -1)], now_ms=1000) == nothing(paused=True)
    assert queue.memory.paused
    assert state(queue) == before


def test_part_of_a_millisecond_makes_no_restored_task_early(queue: DelayQueue) -> None:
    queue.restore([Due("a", 0.25)], now_ms=1000)
    assert state(queue) == {"scheduled": {"a": 1001}}


def test_a_long_page_is_restored_in_slices(queue: DelayQueue) -> None:
    waiting = [Due(str(n), n) for n in range(2 * SLICE + 1)]
    assert len(queue.restore(waiting, now_ms=0).lost) == 2 * SLICE + 1
    assert state(queue) == {"scheduled": {str(n): n for n in range(2 * SLICE + 1)}}


def test_a_long_page_rests_up_to_the_first_task_that_does_not(queue: DelayQueue) -> None:
    ids = [f"{n:04}" for n in range(2 * SLICE)]
    queue.schedule_many((task_id, 0, b"") for task_id in ids)
    queue.claim(SLICE, 1_000_000, now_ms=0)
    bury(queue, *ids[SLICE:])
    waiting = [Due(task_id, -1000) for task_id in ids]
    assert queue.restore(waiting, now_ms=2000).parked == 0
    assert queue.restore([*reversed(waiting)], now_ms=2000).parked == SLICE


def test_a_look_tells_what_is_lost_and_changes_nothing(queue: DelayQueue) -> None:
    queue.schedule("there", 9000)
    before = state(queue)
    waiting = [Due("lost", -1, b"x"), Due("there", 9000)]
    assert queue.restore(waiting, look_only=True, now_ms=1000).lost == ("lost",)
    assert state(queue) == before


# -- a clock that was set back -------------------------------------------------------------


@pytest.mark.parametrize("put", [Put.FAILED, Put.AGAIN])
def test_a_task_put_off_by_a_fast_clock_is_brought_forward(queue: DelayQueue, put: Put) -> None:
    queue.schedule("a", NOW)
    queue.retry([(one(queue, NOW + HOUR), 10_000)], put, now_ms=NOW + HOUR)
    assert state(queue)["scheduled"] == {"a": NOW + HOUR + 10_000}
    assert queue.restore([Due("a", -5)], now_ms=NOW + 5) == nothing()
    assert state(queue)["scheduled"] == {"a": NOW}
    assert one(queue, NOW + 5).attempt == 2


def test_a_task_not_due_is_brought_forward_by_its_record(queue: DelayQueue) -> None:
    queue.schedule("a", NOW)
    queue.retry([(one(queue, NOW), 600_000)], Put.NOT_DUE, now_ms=NOW)
    assert queue.restore([Due("a", 600_000 - 50)], now_ms=NOW) == nothing()
    assert state(queue)["scheduled"] == {"a": NOW + 600_000}
    assert queue.restore([Due("a", -9)], now_ms=NOW + 9) == nothing()
    assert state(queue)["scheduled"] == {"a": NOW}
    assert one(queue, NOW + 9).attempt == 2


def test_a_task_released_by_a_fast_clock_is_brought_forward(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", NOW + HOUR)
    queue.release([one(queue, NOW + HOUR)])
    assert queue.restore([Due("a", 0)], now_ms=NOW) == nothing()
    assert state(queue)["scheduled"] == {"a": NOW}
    assert one(queue, NOW).attempt == 1


def test_a_task_requeued_by_a_fast_clock_is_brought_forward(
    queue: DelayQueue,
) -> None:
    bury(queue, "a")
    queue.requeue(["a"], now_ms=NOW + HOUR)
    assert queue.restore([Due("a", -10)], now_ms=NOW) == nothing()
    assert state(queue)["scheduled"] == {"a": NOW - 10}


def test_a_task_put_off_stays_when_the_clock_goes_back(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", NOW)
    queue.retry([(one(queue, NOW), HOUR)], Put.AGAIN, now_ms=NOW)
    before = state(queue)
    queue.restore([Due("a", -60_000)], now_ms=NOW + 60_000)
    queue.restore([Due("a", -50_000)], now_ms=NOW + 50_000)
    assert state(queue) == before


def test_a_lease_taken_by_a_fast_clock_ends_in_time(
    queue: DelayQueue,
) -> None:
    queue.schedule_many((name, NOW, b"") for name in "abc")
    queue.claim(2, 10_000, now_ms=NOW + HOUR)  # and its worker dies
    claim = queue.claim(1, 10_000, now_ms=NOW)
    assert [task.id for task in claim.tasks] == ["c"], "there is always something to claim"
    assert state(queue)["leased"] == dict.fromkeys("abc", NOW + 10_000)
    queue.ack(claim.tasks)
    suspects = queue.claim(9, 10_000, now_ms=NOW + 10_000).tasks
    assert [(task.id, task.deliveries) for task in suspects] == [("a", 1), ("b", 1)]


def test_a_busy_worker_finds_such_a_lease_in_two_claims(queue: DelayQueue) -> None:
    queue.schedule_many((name, NOW, b"") for name in "abcd")
    (slow,), now_ms, *_ = queue.claim(1, 10_000)
    assert queue.claim(1, 10_000).tasks
    queue.extend([slow], 10_000, now_ms=now_ms + HOUR)
    claims = [queue.claim(1, 10_000) for _ in range(2)]
    assert [len(claim.tasks) for claim in claims] == [1, 1]
    assert state(queue)["leased"][slow.id] <= claims[-1].now_ms + 10_000


def test_a_lease_extended_by_a_fast_clock_ends_in_time(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", NOW)
    queue.extend([one(queue, NOW, 10_000)], 10_000, now_ms=NOW + HOUR)
    assert queue.claim(9, 10_000, now_ms=NOW + 5).next_in_ms == 10_000
    assert state(queue)["leased"] == {"a": NOW + 10_005}


def test_who_extends_a_lease_keeps_it_when_the_clock_goes_back(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", NOW)
    task = one(queue, NOW + HOUR, 10_000)
    queue.claim(9, 10_000, now_ms=NOW)
    queue.extend([task], 10_000, now_ms=NOW + 3000)
    assert queue.claim(9, 10_000, now_ms=NOW + 10_000).tasks == []
    queue.ack([task])
    assert state(queue) == {}


def test_a_claim_with_a_short_lease_shortens_no_long_one(queue: DelayQueue) -> None:
    queue.schedule("a", NOW)
    task = one(queue, NOW, 60_000)
    queue.claim(9, 10, now_ms=NOW + 5)
    assert state(queue)["leased"] == {"a": NOW + 60_000}
    queue.extend([task], 90_000, now_ms=NOW + 20)
    queue.claim(9, 10, now_ms=NOW + 25)
    assert state(queue)["leased"] == {"a": NOW + 90_020}


# -- who sweeps ----------------------------------------------------------------------------


def sweep(queue: DelayQueue, worker: str, now_ms: int) -> tuple[bool, bool, int]:
    """A sweep that finds nothing: whether it is this worker's turn, newly, and for how long not."""
    found = queue.restore([], worker_id=worker, term_ms=100, now_ms=now_ms)
    assert found[:4] == ((), 0, 0, False)
    return found.turn, found.new_turn, found.turn_in_ms


def test_the_first_worker_to_ask_sweeps_and_the_others_do_not(queue: DelayQueue) -> None:
    assert sweep(queue, "w1", 1000) == (True, True, 0)
    assert state(queue) == {"sweeper": "1100 w1"}
    assert sweep(queue, "w2", 1010) == (False, False, 90)
    assert state(queue) == {"sweeper": "1100 w1"}


def test_whoever_sweeps_goes_on_and_learns_that_it_did_before(queue: DelayQueue) -> None:
    sweep(queue, "w1", 1000)
    assert sweep(queue, "w1", 1060) == (True, False, 0)
    assert sweep(queue, "w2", 1110) == (False, False, 50)
    assert sweep(queue, "w1", 1500) == (True, False, 0), "nobody did meanwhile"
    assert state(queue) == {"sweeper": "1600 w1"}


def test_a_worker_whose_turn_it_is_not_changes_nothing(queue: DelayQueue) -> None:
    sweep(queue, "w1", 1000)
    queue.schedule("late", 9000)
    before = state(queue)
    found = queue.restore(
        [Due("lost", -1), Due("late", -1)], worker_id="w2", term_ms=100, now_ms=1000
    )
    assert found == Restored((), 0, 0, paused=False, turn=False, turn_in_ms=100)
    assert state(queue) == before


def test_a_worker_out_of_turn_still_knows_of_the_pause(
    queue: DelayQueue,
) -> None:
    queue.pause()
    sweep_of_a_paused = queue.restore([], worker_id="w1", term_ms=100, now_ms=1000)
    assert sweep_of_a_paused == Restored((), 0, 0, paused=True, turn=True, new_turn=True)
    standby = DelayQueue(queue._redis, queue.name)
    assert standby.restore([], worker_id="w2", term_ms=100, now_ms=1000).paused
    assert standby.memory.paused
    queue.resume()
    standby.restore([], worker_id="w2", term_ms=100, now_ms=1000)
    assert not standby.memory.paused


def test_another_worker_takes_over_when_the_turn_is_over(queue: DelayQueue) -> None:
    sweep(queue, "w1", 1000)
    assert sweep(queue, "w2", 1099) == (False, False, 1)
    assert sweep(queue, "w2", 1100) == (True, True, 0)
    assert sweep(queue, "w1", 1100) == (False, False, 100)
    assert state(queue) == {"sweeper": "1200 w2"}


def test_a_worker_that_resigns_lets_another_one_sweep_at_once(queue: DelayQueue) -> None:
    sweep(queue, "w1", 1000)
    queue.resign("w2")
    assert sweep(queue, "w2", 1001) == (False, False, 99), "only its own turn"
    queue.resign("w1")
    assert state(queue) == {}
    assert sweep(queue, "w2", 1001) == (True, True, 0)


def test_no_turn_outlasts_a_clock_that_was_set_back(
    queue: DelayQueue,
) -> None:
    sweep(queue, "w1", NOW + HOUR)
    assert sweep(queue, "w2", NOW) == (True, True, 0)
    assert sweep(queue, "w1", NOW) == (False, False, 100)


def test_after_a_flush_it_is_a_new_turn_even_for_the_same_worker(
    client: redis.Redis, queue: DelayQueue
) -> None:
    sweep(queue, "w1", 1000)
    client.flushall()
    assert sweep(queue, "w1", 1001) == (True, True, 0)
    assert sweep(queue, "w1", 1002) == (True, False, 0)


def test_a_new_turn_is_told_of_a_page_of_any_length(queue: DelayQueue) -> None:
    waiting = [Due(str(n), n) for n in range(2 * SLICE + 1)]
    found = queue.restore(waiting, worker_id="w1", term_ms=100, now_ms=0)
    assert len(found.lost) == 2 * SLICE + 1
    assert found.new_turn
    found = queue.restore(waiting, worker_id="w1", term_ms=100, now_ms=0)
    assert not found.new_turn


@pytest.mark.parametrize("kept", ["", "w1", "soon w1", "99999999999999999999"])
def test_a_turn_that_was_spoiled_is_nobodys(queue: DelayQueue, kept: str) -> None:
    queue._redis.set(queue.keys.sweeper, kept)
    assert sweep(queue, "w2", 1000) == (True, True, 0)


def test_a_worker_id_may_contain_spaces(queue: DelayQueue) -> None:
    sweep(queue, "host a 1", 1000)
    assert sweep(queue, "host a 1", 1000) == (True, False, 0)
    assert sweep(queue, "a 1", 1000) == (False, False, 100)
    queue.resign("a 1")
    queue.resign("host a 1")
    assert state(queue) == {}


def test_whoever_names_no_worker_restores_without_a_turn(queue: DelayQueue) -> None:
    sweep(queue, "w1", 1000)
    found = queue.restore([Due("a", 0)], now_ms=1000)
    assert found == Restored(("a",), 0, 0, paused=False)
    assert state(queue) == {"sweeper": "1100 w1", "scheduled": {"a": 1000}}


# -- which workers live --------------------------------------------------------------------


def test_a_worker_that_beats_is_known_with_what_it_last_said(queue: DelayQueue) -> None:
    queue.beat("w1", {"holds": 1})
    queue.beat("w1", {"holds": 2, "held": ["a\udcff"]})
    queue.beat("w2", {})
    first, second = queue.workers()
    assert (first.id, first.details) == ("w1", {"holds": 2, "held": ["a\udcff"]})
    assert (second.id, second.details) == ("w2", {})
    assert 0 <= first.heard_ms_ago < 60_000


def test_a_worker_that_signs_off_is_forgotten(queue: DelayQueue) -> None:
    queue.beat("w1", {})
    queue.beat("w2", {})
    queue.sign_off("w1")
    assert [status.id for status in queue.workers()] == ["w2"]
    queue.sign_off("w2")
    assert state(queue) == {}


@pytest.mark.parametrize("server", REAL, indirect=True, scope="session")
def test_a_beat_costs_the_same_however_many_workers_there_are(
    client: redis.Redis, queue: DelayQueue
) -> None:
    costs: list[Any] = []
    for workers in (1, 50):
        for n in range(workers):
            queue.beat(f"w{n}", {"holds": n})
        client.config_resetstat()
        assert queue.beat("w0", {}) == workers
        stats: Any = client.info("commandstats")
        costs.append(
            {name: each["calls"] for name, each in stats.items() if name != "cmdstat_info"}
        )
    assert costs[0] == costs[1]
    assert "cmdstat_hgetall" not in costs[0], "it reads no worker"


def test_workers_silent_for_an_hour_are_forgotten(client: redis.Redis, queue: DelayQueue) -> None:
    queue.beat("w1", {})
    beaten = state(queue)["heard"]["w1"]
    silent = dict.fromkeys((f"gone {n}" for n in range(12)), beaten - FORGET_WORKERS_MS - 60_000)
    heard = {"quiet": beaten - FORGET_WORKERS_MS + 60_000, "ahead": beaten + HOUR}
    client.zadd(queue.keys.heard, silent | heard)
    client.hset(queue.keys.workers, mapping=dict.fromkeys(silent | heard, "{}"))
    client.zadd(queue.keys.claims, {"gone": beaten - FORGET_WORKERS_MS - 60_000})
    queue.beat("w1", {})
    assert len(state(queue)["workers"]) == 5, "a few at a time"
    queue.beat("w1", {})
    assert {*state(queue)["workers"]} == {*state(queue)["heard"]} == {"w1", "quiet", "ahead"}
    assert not client.exists(queue.keys.claims)
    ago = {status.id: status.heard_ms_ago for status in queue.workers()}
    assert ago["ahead"] == 0
    assert FORGET_WORKERS_MS - 60_000 <= ago["quiet"] < FORGET_WORKERS_MS


def test_the_attempts_of_a_task_survive_being_brought_forward(queue: DelayQueue) -> None:
    queue.schedule("a", NOW)
    queue.retry([(one(queue, NOW + HOUR), 10)], Put.FAILED, now_ms=NOW + HOUR)
    before = state(queue)["tokens"]
    queue.restore([Due("a", 0)], now_ms=NOW)
    assert state(queue)["tokens"] == before == {"a": attempts(NOW, span=10, failures=1, before=1)}
