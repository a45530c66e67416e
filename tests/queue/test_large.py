"""Large payloads and many dead letters: no script copies more than 1 MiB, and an error loses no task."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
import redis

from tests.kit.queue_state import state
from tests.kit.queue_steps import one
from worker import DelayQueue, Due
from worker.queue.formats import MAX_PAYLOAD_BYTES, checked_due

KIB = 1024


def sizes_claimed(queue: DelayQueue, now_ms: int, limit: int = 9) -> list[list[int]]:
    """How large the payloads of each claim are, until nothing is due."""
    found: list[list[int]] = []
    while tasks := queue.claim(limit, 1000, now_ms=now_ms).tasks:
        found.append([len(task.payload) // KIB for task in tasks])
    return found


@pytest.mark.parametrize(
    ("sizes", "claims"),
    [
        ([300] * 5, [[300] * 3, [300] * 2]),
        ([0, 2000, 0, 0], [[0], [2000], [0, 0]]),
        ([1024, 1], [[1024], [1]]),
        ([512, 512, 0], [[512, 512, 0]]),
    ],
)
def test_a_claim_hands_out_no_more_than_fits_in_a_reply(
    queue: DelayQueue, sizes: list[int], claims: list[list[int]]
) -> None:
    queue.schedule_many((f"{n}", 1000 + n, b"x" * size * KIB) for n, size in enumerate(sizes))
    assert sizes_claimed(queue, 2000) == claims
    assert len(state(queue)["leased"]) == len(sizes)


def test_suspects_with_large_payloads_come_in_smaller_claims(queue: DelayQueue) -> None:
    queue.schedule_many((f"{n}", 1000, b"x" * 600 * KIB) for n in range(3))
    sizes_claimed(queue, 1000)
    assert sizes_claimed(queue, 2000) == [[600]] * 3


@pytest.mark.parametrize(
    ("calls", "use"),
    [
        (3, lambda queue: queue.schedule_many([(f"{n}", 1, b"x" * 600 * KIB) for n in range(3)])),
        (3, lambda queue: queue.schedule_many([(f"{n}", 1, b"x" * KIB) for n in range(1200)])),
        (3, lambda queue: queue.restore([Due(f"{n}", 0, b"x" * 600 * KIB) for n in range(3)])),
        (1, lambda queue: queue.restore([Due("a", 0, b"x" * 2000 * KIB)] * 9, look_only=True)),
    ],
    ids=["large", "many", "restored", "looked at"],
)
def test_what_is_sent_is_sliced_by_its_size(
    queue: DelayQueue, calls: int, use: Callable[[DelayQueue], object]
) -> None:
    with patch.object(queue, "_run", wraps=queue._run) as run:
        use(queue)
    assert run.call_count == calls


# -- a key of another type -----------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda queue: queue.claim(1, 10, now_ms=2000),
        lambda queue: queue.claim(9, 10, now_ms=2000),
        lambda queue: queue.schedule("held", 5000, b"x"),
        lambda queue: queue.schedule("held", 5000),
        lambda queue: queue.schedule("new", 5000, b"x"),
        lambda queue: queue.restore([Due("new", 0, b"x")], now_ms=1000),
    ],
    ids=["claim one", "claim", "move", "move and empty", "schedule", "restore"],
)
def test_an_error_at_the_payloads_moves_no_task(
    client: redis.Redis, queue: DelayQueue, use: Callable[[DelayQueue], object]
) -> None:
    queue.schedule("held", 1000)
    one(queue, 1000, lease_ms=9000)
    queue.schedule_many([("a", 1000, b"x"), ("b", 1001, b"y")])
    client.delete(queue.keys.payloads)
    before = state(queue)
    client.set(queue.keys.payloads, "a string")
    with pytest.raises(redis.RedisError, match="WRONGTYPE"):
        use(queue)
    client.delete(queue.keys.payloads)
    assert state(queue) == before


def test_a_payload_that_no_claim_could_bring_is_refused(queue: DelayQueue) -> None:
    payload = bytes(MAX_PAYLOAD_BYTES + 1)
    for schedule in (
        lambda: queue.schedule("a", 1, payload),
        lambda: queue.schedule("a", delay_ms=1, payload=payload),
        lambda: checked_due(Due("a", 1, payload)),
    ):
        with pytest.raises(ValueError, match="16 MiB"):
            schedule()
    assert state(queue) == {}
