"""A queue's client, keys and scripts."""

from collections.abc import Sequence
from typing import Any

import redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError

from .environment import REAL, Environment, Memory
from .keys import Keys
from .scripts import scripts

#: A pause that Redis has lost is renewed only by a client that asked no longer ago than this, because it may
#: have been ended since.
PAUSE_KNOWN_SECONDS = 60.0


class _Script(Script):
    """A script that is loaded on the node that runs it. redis-py would load it on all primaries of a cluster, which
    fails while one of them is down.
    """

    def __call__(self, keys: Any = (), args: Any = (), client: Any = None) -> Any:
        client = client or self.registered_client
        try:
            return client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(self.script, len(keys), *keys, *args)


class ScriptedQueue:
    """The queue ``name`` on ``client``. Raises ValueError for a client that decodes responses."""

    def __init__(self, client: redis.Redis, name: str, *, environment: Environment = REAL) -> None:
        if isinstance(client, redis.Redis) and client.get_encoder().decode_responses:
            raise ValueError("payloads are bytes: the client must not have decode_responses=True")
        self.name = name
        self.keys = Keys(name)
        self.environment = environment
        self.memory = Memory(environment.token(8))
        #: redis-py types each reply as a value or an awaitable; on this client it is the value.
        self._redis: Any = client
        self._scripts: dict[str, tuple[Script, list[str]]] = {
            file.name: (_Script(client, file.text.encode()), self.keys.of(file))
            for file in scripts()
        }

    def _pause_to_renew(self) -> str:
        """For a claim or a sweep, which asks now: '1' if it was paused a moment ago, otherwise ''."""
        memory, asked_at = self.memory, self.memory.asked_at
        memory.asked_at = self.environment.clock()
        recent = memory.asked_at - asked_at < PAUSE_KNOWN_SECONDS
        return "1" if memory.paused and recent else ""

    def _run(
        self, name: str, now_ms: int | None, *args: Any, keys: Sequence[str] | None = None
    ) -> Any:
        script, own = self._scripts[name]
        return script(keys=keys or own, args=["" if now_ms is None else now_ms, *args])
