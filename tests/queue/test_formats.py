"""What a later release may have written: read as far as it is known, and left as it is.

Records of attempts: test_queue_leases.py.
"""

import json

import redis

from tests.kit.queue_state import state
from tests.kit.queue_steps import bury
from worker import DelayQueue, Due
from worker.queue.replies import Seeded

LATER = {"later": [1, {"x": "y"}]}


def test_a_letter_may_say_more_and_is_requeued(client: redis.Redis, queue: DelayQueue) -> None:
    bury(queue, "a")
    story = json.loads(client.hget(queue.keys.letters, "a")) | LATER  # type: ignore[arg-type]
    client.hset(queue.keys.letters, "a", json.dumps(story))
    before = state(queue)
    [letter] = queue.letters(["a"])
    assert letter.story == story
    assert state(queue) == before
    assert queue.requeue(["a"]) == ["a"]


def test_a_pause_may_say_more(client: redis.Redis, queue: DelayQueue) -> None:
    queue.schedule("a", 0)
    kept = json.dumps({"reason": "moving", "by": "anna", "at_ms": 1000, **LATER})
    client.hset(queue.keys.control, "paused", kept)
    assert queue.claim(1, 1000, now_ms=1000).paused
    found = queue.find_pause()
    assert found is not None
    assert (found.reason, found.by) == ("moving", "anna")
    assert client.hget(queue.keys.control, "paused") == kept.encode()


def test_a_worker_may_say_more_of_itself(queue: DelayQueue) -> None:
    queue.beat("later", LATER)
    queue.beat("ours", {"up": True})
    before = state(queue)
    assert [status.details for status in queue.workers()] == [LATER, {"up": True}]
    queue.sign_off("ours")
    assert state(queue)["workers"] == {"later": before["workers"]["later"]}


def test_a_turn_that_says_more_is_anothers(client: redis.Redis, queue: DelayQueue) -> None:
    kept = b"5000 ours and more"
    client.hset(queue.keys.control, "sweeper", kept)
    waiting = queue.restore([Due("a", 0)], worker_id="ours", term_ms=3000, now_ms=4000)
    assert (waiting.turn, waiting.turn_in_ms) == (False, 1000)
    assert client.hget(queue.keys.control, "sweeper") == kept
    assert queue.restore([Due("a", 0)], worker_id="ours", term_ms=3000, now_ms=5001).lost == ("a",)


def test_a_schedule_that_says_more_is_left_alone(client: redis.Redis, queue: DelayQueue) -> None:
    queue.seed("daily", 500, ("a", 9000), now_ms=1000)
    kept = state(queue)["recurrence"].replace("500", "800") + " more"
    client.hset(queue.keys.control, "recurrence", kept)
    before = state(queue)
    assert queue.seed("daily", 500, ("b", 8000), now_ms=2000) == Seeded(in_force=False, ids=())
    assert state(queue) == before
    gone = int(kept.partition(" ")[0]) + 1
    assert queue.seed("daily", 500, ("c", gone + 1), now_ms=gone).ids == ("c",)
