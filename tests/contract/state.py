"""All that a queue stores, as one value to compare."""

import json
from typing import Any

import redis

from worker import DelayQueue

State = dict[str, Any]


def state(queue: DelayQueue) -> State:
    """What is under the queue's keys: key without its prefix -> content; absent keys left out.

    An unknown key is shown as well, so that nothing is ever stored unnoticed.
    """
    client: Any = queue._redis
    prefix = f"{{{queue.name}}}:".encode()
    found = {key: _content(client, key) for key in client.keys(prefix + b"*")}
    return {
        key.removeprefix(prefix).decode(): content
        for key, content in found.items()
        if content  # a worker may have deleted the key meanwhile
    }


def _content(client: Any, key: bytes) -> Any:
    match client.type(key):
        case b"zset":
            members = client.zrange(key, 0, -1, withscores=True)
            return {_text(member): _whole(score) for member, score in members}
        case b"hash":
            return {_text(name): _value(key, value) for name, value in client.hgetall(key).items()}
        case b"list":
            return [_text(entry) for entry in client.lrange(key, 0, -1)]
        case b"string":
            return client.get(key)
        case b"none":
            return None
        case other:
            raise AssertionError(f"{key!r} is a {other!r}")


def _value(key: bytes, value: bytes) -> Any:
    if key.endswith(b":letters"):
        return json.loads(value)
    if key.endswith(b":payloads"):
        return value
    return value.decode() if key.endswith(b":tokens") else int(value)


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
        self._pubsub.get_message(timeout=1)

    def count(self) -> int:
        """How many came since the last count."""
        self._client.publish(self._queue.keys.wake, b"last")
        count = 0
        while (message := self._pubsub.get_message(timeout=1)) is not None:
            if message["data"] == b"last":
                return count
            count += 1
        raise AssertionError("the wake channel fell silent")

    def close(self) -> None:
        self._pubsub.close()
