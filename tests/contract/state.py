"""All that a queue stores, as one value to compare."""

import json
from typing import Any

import redis

from worker import DelayQueue

State = dict[str, Any]
ZSETS = ("scheduled", "leased")
HASHES = ("letters", "payloads", "tokens", "failures", "deliveries", "first_due")


def state(queue: DelayQueue) -> State:
    """What is under the queue's keys in one moment: key without its prefix -> content.

    Absent keys are left out. A key that is not in the map at the top of ``queue.py`` fails, so
    that nothing is ever stored unnoticed.
    """
    client: Any = queue._redis
    with client.pipeline(transaction=True) as pipe:
        pipe.keys(f"{{{queue.name}}}:*")
        for name in ZSETS:
            pipe.zrange(getattr(queue.keys, name), 0, -1, withscores=True)
        for name in HASHES:
            pipe.hgetall(getattr(queue.keys, name))
        pipe.lrange(queue.keys.dead, 0, -1)
        pipe.get(queue.keys.paused)
        keys, *contents, dead, paused = pipe.execute()
    found: State = {"dead": [_text(entry) for entry in dead], "paused": paused}
    for name, members in zip(ZSETS, contents, strict=False):
        found[name] = {_text(member): _whole(score) for member, score in members}
    for name, rows in zip(HASHES, contents[len(ZSETS) :], strict=True):
        found[name] = {_text(field): _value(name, value) for field, value in rows.items()}
    found = {name: content for name, content in found.items() if content}
    assert sorted(map(_text, keys)) == sorted(getattr(queue.keys, name) for name in found)
    return found


def _value(name: str, value: bytes) -> Any:
    if name == "letters":
        return json.loads(value)
    if name == "payloads":
        return value
    return value.decode() if name == "tokens" else int(value)


def _whole(score: float) -> float:
    return int(score) if score.is_integer() else score


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


class Messages:
    """What is published on a queue's wake channel from now on."""

    def __init__(self, client: redis.Redis, queue: DelayQueue) -> None:
        self._client = client
        self._queue = queue
        self._pubsub: Any = client.pubsub()  # type: ignore[no-untyped-call]
        self._pubsub.subscribe(queue.keys.wake)
        self._pubsub.get_message(timeout=60)

    def count(self) -> int:
        """How many came since the last count."""
        self._client.publish(self._queue.keys.wake, b"last")
        count = 0
        while (message := self._pubsub.get_message(timeout=60)) is not None:
            if message["data"] == b"last":
                return count
            count += 1
        raise AssertionError("the wake channel fell silent")

    def close(self) -> None:
        self._pubsub.close()
