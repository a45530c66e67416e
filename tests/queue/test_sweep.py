"""Restoring what Redis lost and who does it, as far as the model does not go; and which workers live."""

from typing import Any

import pytest
import redis

from tests.kit.queue_state import state
from tests.queue.conftest import REAL
from worker import DelayQueue, Due
from worker.queue.formats import SLICE
from worker.queue.replies import Restored
from worker.queue.worker_side import FORGET_WORKERS_MS

HOUR = 3_600_000


# -- what is restored ----------------------------------------------------------------------


def test_a_long_page_is_restored_in_slices_of_one_turn(queue: DelayQueue) -> None:
    waiting = [Due(str(n), n) for n in range(2 * SLICE + 1)]
    found = queue.restore(waiting, worker_id="w1", term_ms=100, now_ms=0)
    assert (len(found.lost), found.new_turn) == (2 * SLICE + 1, True)
    assert state(queue)["scheduled"] == {str(n): n for n in range(2 * SLICE + 1)}
    assert not queue.restore(waiting, worker_id="w1", term_ms=100, now_ms=0).new_turn


# -- who sweeps ----------------------------------------------------------------------------


def test_a_worker_out_of_turn_still_knows_of_the_pause(
    queue: DelayQueue,
) -> None:
    queue.pause()
    sweep_of_a_paused = queue.restore([], worker_id="w1", term_ms=100, now_ms=1000)
    assert sweep_of_a_paused == Restored((), 0, paused=True, turn=True, new_turn=True)
    standby = DelayQueue(queue._redis, queue.name)
    assert standby.restore([], worker_id="w2", term_ms=100, now_ms=1000).paused
    assert standby.memory.paused
    queue.resume()
    standby.restore([], worker_id="w2", term_ms=100, now_ms=1000)
    assert not standby.memory.paused


@pytest.mark.parametrize("kept", ["", "w1", "soon w1", "99999999999999999999"])
def test_a_turn_that_was_spoiled_is_nobodys(queue: DelayQueue, kept: str) -> None:
    queue._redis.hset(queue.keys.control, "sweeper", kept)
    found = queue.restore([], worker_id="w2", term_ms=100, now_ms=1000)
    assert (found.turn, found.new_turn) == (True, True)


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
def test_a_beat_reads_no_other_workers_details(client: redis.Redis, queue: DelayQueue) -> None:
    costs: list[Any] = []
    for workers in (1, 50):
        for n in range(workers):
            queue.beat(f"w{n}", {"holds": n})
        client.config_resetstat()
        assert queue.beat("w0", {})[0] == workers
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
    queue.beat("w1", {})
    assert len(state(queue)["workers"]) == 5, "a few at a time"
    queue.beat("w1", {})
    assert {*state(queue)["workers"]} == {*state(queue)["heard"]} == {"w1", "quiet", "ahead"}
    ago = {status.id: status.heard_ms_ago for status in queue.workers()}
    assert ago["ahead"] == 0
    assert FORGET_WORKERS_MS - 60_000 <= ago["quiet"] < FORGET_WORKERS_MS
