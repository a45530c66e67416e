"""All that a queue stores, as one value to compare."""

import json
from typing import Any

import redis

from worker import DelayQueue

State = dict[str, Any]
ZSETS = ("scheduled", "leased", "dead", "seeded", "heard")
HASHES = ("letters", "payloads", "tokens", "workers", "control")
#: Stands where a token stands while a worker holds the task.
NOBODY = 64 * "-"


def state(queue: DelayQueue) -> State:
    """What is under the queue's keys in one moment: key without its prefix, or field of ``control`` -> content.

    Absent keys are left out, and so is ``claims``, which every claim changes. Any other key that is not in the map at the top of ``keys.py`` fails, so that nothing is ever stored unnoticed.
    """
    client: Any = queue._redis
    with client.pipeline(transaction=True) as pipe:
        pipe.keys(f"{{{queue.name}}}:*")
        for name in ZSETS:
            pipe.zrange(getattr(queue.keys, name), 0, -1, withscores=True)
        for name in HASHES:
            pipe.hgetall(getattr(queue.keys, name))
        keys, *contents = pipe.execute()
    found: State = {}
    for name, content in zip((*ZSETS, *HASHES), contents, strict=True):
        if name in ZSETS:
            found[name] = {_text(member): _whole(score) for member, score in content}
        else:
            found[name] = {_text(field): _value(name, value) for field, value in content.items()}
    found["dead"] = [*found["dead"]][::-1]  # newest first; their letters say when they died
    found = {name: content for name, content in found.items() if content}
    keys = [key for key in keys if _text(key) != queue.keys.claims]
    assert sorted(map(_text, keys)) == sorted(getattr(queue.keys, name) for name in found)
    found |= found.pop("control", {})
    return found


def attempts(
    due: int,
    token: str = NOBODY,
    *,
    span: int = 0,
    appointment: int | None = None,
    failures: int = 0,
    deliveries: int = 0,
    before: int = 0,
    claimed: int = 0,
) -> str:
    """What is stored of a task's attempts: see ``worker/queue/lua/include/attempts.lua``."""
    claimed = 0 if token == NOBODY else claimed
    times = (span, due, due if appointment is None else appointment)
    counts = (failures, deliveries, before, claimed)
    return token + " ".join(map(str, ("v1", *times, *counts))) + " "


def _value(name: str, value: bytes) -> Any:
    if name == "letters":
        return json.loads(value)
    return value if name == "payloads" else _text(value)


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
        self._pubsub.subscribe(queue.keys.channel)
        self._pubsub.get_message(timeout=60)

    def count(self) -> int:
        """How many came since they were last asked for."""
        return len(self.texts())

    def texts(self) -> list[str]:
        """Those that came since they were last asked for."""
        self._client.publish(self._queue.keys.channel, b"last")
        texts: list[str] = []
        while (message := self._pubsub.get_message(timeout=60)) is not None:
            if message["data"] == b"last":
                return texts
            texts.append(message["data"].decode())
        raise AssertionError("the wake channel fell silent")

    def close(self) -> None:
        self._pubsub.close()
