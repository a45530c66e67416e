"""A queue in four shards looks like one that has none, to whoever schedules, looks and repairs."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from worker import DelayQueue, Due, Flow, ShardedQueue
from worker.queue.shards import parts_of, shard_of, shards_of

SHARDS = 4
IDS = [f"task-{n}" for n in range(20)]
DEAD = [f"dead-{n}" for n in range(130)]
LATER = 2_000_000_000_000


@pytest.fixture
def sharded(client: redis.Redis) -> ShardedQueue:
    return ShardedQueue(client, "sharded", SHARDS)


def fill(queue: DelayQueue) -> None:
    """Twenty tasks that are due in the future, five of them leased, and 130 dead ones, ten in each millisecond."""
    queue.schedule_many((task_id, n // 10, b"x") for n, task_id in enumerate(DEAD))
    for at in range(len(DEAD) // 10):
        for part in parts_of(queue):
            tasks = part.claim(100, 1000, now_ms=at).tasks
            part.dead_letter([(task, "bad", None) for task in tasks], now_ms=at)
    queue.schedule_many((task_id, LATER + n, b"") for n, task_id in enumerate(IDS[5:]))
    queue.schedule_many((task_id, 500, b"") for task_id in IDS[:5])
    for part in parts_of(queue):
        part.claim(100, 1000, now_ms=500)


def page_after(queue: DelayQueue, at_ms: int) -> list[str]:
    """What follows the last dead letter of a millisecond, to the end of the list."""
    last = [letter.id for letter in queue.dead(130) if letter.story["died_at_ms"] == at_ms][-1]
    return [task_id for page in queue.newest_dead_ids((at_ms, last)) for task_id in page]


LOOKS: dict[str, Callable[[DelayQueue], Any]] = {
    "the counts": lambda queue: queue.stats(now_ms=600),
    "the forecast": lambda queue: queue.forecast(5, 100, now_ms=0),
    "what is due next": lambda queue: queue.upcoming(3),
    "a task that waits": lambda queue: queue.look_up(IDS[7], now_ms=600),
    "a task that is leased": lambda queue: queue.look_up(IDS[0], now_ms=600),
    "a task that there is not": lambda queue: queue.look_up("nobody"),
    "a sample": lambda queue: queue.inspect(),
    "letters": lambda queue: queue.letters([DEAD[9], "nobody", DEAD[3]]),
    "all dead": lambda queue: sorted(task_id for page in queue.dead_ids() for task_id in page),
    "newest first": lambda queue: [
        letter.story["died_at_ms"] for letter in queue.dead(limit=60, offset=15)
    ],
    "pages": lambda queue: [len(page) for page in queue.newest_dead_ids()],
    "from a page on": lambda queue: sorted(page_after(queue, 7)),
    "scheduled again": lambda queue: queue.schedule_many(
        [(IDS[0], 1, b""), (DEAD[0], 1, b""), ("new", 1, b"")], only_if_absent=True
    ),
    "cancelled": lambda queue: queue.cancel_many([IDS[0], IDS[9], "nobody", DEAD[4]]),
    "requeued": lambda queue: sorted(queue.requeue([DEAD[2], "nobody", DEAD[1]])),
    "purged": lambda queue: sorted(queue.purge(DEAD[:30])),
    "restored": lambda queue: sorted(
        queue.restore([Due(each, 10) for each in (IDS[1], IDS[7], "lost", "gone", "away")]).lost
    ),
    "due already": lambda queue: [
        queue.requeue(DEAD[:7]),
        queue.restore([Due(each, 0) for each in DEAD[:7]]).due,
    ][1],
    "destroyed": lambda queue: [queue.destroy(), queue.stats()],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("look", LOOKS)
def test_shards_look_like_one_queue(client: redis.Redis, sharded: ShardedQueue, look: str) -> None:
    plain = DelayQueue(client, "plain")
    for queue in (plain, sharded):
        fill(queue)
    assert LOOKS[look](sharded) == LOOKS[look](plain)


def test_each_task_is_in_its_own_shard(client: redis.Redis, sharded: ShardedQueue) -> None:
    sharded.schedule_many((task_id, LATER, b"") for task_id in IDS)
    names = ["sharded", "sharded/1", "sharded/2", "sharded/3"]
    for n, name in enumerate(names):
        own = [task_id for task_id in IDS if shard_of(task_id, SHARDS) == n]
        assert own, "each shard has some"
        assert sorted(task_id for task_id, _ in DelayQueue(client, name).upcoming(99)) == sorted(
            own
        )


def test_a_pause_stops_every_shard(sharded: ShardedQueue) -> None:
    sharded.schedule_many((task_id, 1, b"") for task_id in IDS)
    sharded.pause()
    assert [part.claim(9, 9).paused for part in sharded.parts] == [True] * SHARDS
    sharded.resume()
    assert sum(len(part.claim(99, 9).tasks) for part in sharded.parts) == len(IDS)


def test_one_worker_of_all_shards_is_one(sharded: ShardedQueue) -> None:
    for n, part in enumerate(sharded.parts):
        facts = {"up": n != 2, "holds": n, "held": [f"{n}"], "oldest_seconds": n, "handled": 5}
        part.beat("w", {**facts, "lateness": [(10, 3), (None, 2)]})
    sharded.parts[1].beat("v", {"up": True})
    v, w = sharded.workers()
    assert (v.id, w.id) == ("v", "w")
    assert w.details == {
        "up": False,
        "holds": 6,
        "held": ["0", "1", "2", "3"],
        "oldest_seconds": 3,
        "handled": 20,
        "lateness": [(10, 12), (None, 8)],
    }


def test_a_shard_that_fails_keeps_no_other_from_a_change(
    client: redis.Redis, sharded: ShardedQueue
) -> None:
    client.set(sharded.parts[0].keys.scheduled, "not a zset")
    with pytest.raises(redis.ResponseError):
        sharded.schedule_many((task_id, LATER, b"") for task_id in IDS)
    others = [task_id for task_id in IDS if shard_of(task_id, SHARDS)]
    assert sum(part.stats().scheduled for part in sharded.parts[1:]) == len(others)


def test_each_flow_of_a_shard_sweeps_its_own_rows() -> None:
    rows = [[Due(task_id, 1) for task_id in IDS], [Due(7, 1)]]  # type: ignore[arg-type]
    flow = Flow(
        name="f",
        handler=lambda _: None,
        sweep=lambda *_: iter(rows),
        without_redis="handle",
        tick=lambda: None,
        shards=2,
        shards_before=3,
    )
    first, second, emptied = shards_of(flow)
    assert [first.name, second.name, emptied.name] == ["f", "f/1", "f/2"]
    assert first.sweep
    assert second.sweep
    swept = [
        [row.id for page in sweep(None, 0) for row in page] for sweep in (first.sweep, second.sweep)
    ]
    assert swept[0] == [each for each in IDS if shard_of(each, 2) == 0] + [7], "it logs the odd one"
    assert swept[1] == [each for each in IDS if shard_of(each, 2) == 1]
    assert emptied.sweep is None
    assert emptied.without_redis == "wait"
    assert [each.tick for each in (first, second, emptied)] == [flow.tick, None, None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shards": 0}, "1 to 64 shards"),
        ({"shards": 65}, "1 to 64 shards"),
        ({"shards_before": 65}, "not 1, and 65 before"),
        ({"shards": 2}, "needs a sweep"),
        ({"shards_before": 2}, "needs a sweep"),
        ({"shards": 2, "sweep": lambda *_: [], "pool": "p"}, "no pool"),
        ({"name": "f/0"}, "name"),
        ({"name": "f/x"}, "name"),
    ],
)
def test_shards_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Flow(**{"name": "f", "handler": lambda _: None, **settings})
