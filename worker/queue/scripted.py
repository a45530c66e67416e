"""A queue's client, keys and scripts."""

from collections.abc import Sequence
from typing import Any

import redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError

from .environment import REAL, Environment, Memory
from .keys import Keys
from .scripts import scripts


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

    def _run(
        self, name: str, now_ms: int | None, *args: Any, keys: Sequence[str] | None = None
    ) -> Any:
        script, own = self._scripts[name]
        return script(keys=keys or own, args=["" if now_ms is None else now_ms, *args])
