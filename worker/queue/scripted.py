"""A queue's client, keys and scripts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError

from .connection import Line
from .environment import REAL, Environment
from .keys import Keys
from .memory import Memory
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

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        *,
        environment: Environment = REAL,
        line: Line | None = None,
    ) -> None:
        if isinstance(client, redis.Redis) and client.get_encoder().decode_responses:
            raise ValueError("payloads are bytes: the client must not have decode_responses=True")
        self.name = name
        self.keys = Keys(name)
        self.environment = environment
        self.memory = Memory(environment.token(8))
        #: On which scripts run in threads that have it open.
        self.line = line or Line(client)
        #: redis-py types each reply as a value or an awaitable; on this client it is the value.
        self._redis: Any = client
        self._scripts: dict[str, tuple[Script, list[str]]] = {
            file.name: (_Script(client, file.text.encode()), self.keys.of(file))
            for file in scripts()
        }

    def _run(self, name: str, now_ms: int | None, *args: Any) -> Any:
        sent = ["" if now_ms is None else now_ms, *args]
        if self.line.is_open:
            [answer] = self._together((name, *sent))
            return answer()
        script, keys = self._scripts[name]
        return script(keys=keys, args=sent)

    def _together(self, *calls: Sequence[Any]) -> list[Callable[[], Any]]:
        """Run scripts, given as (name, argument, ...), in one round trip on this thread's line. Returns for each what
        returns its reply, or raises its RedisError.
        """
        scripts = [(*self._scripts[name], args) for name, *args in calls]
        replies = self.line.send(
            *(("EVALSHA", script.sha, len(keys), *keys, *args) for script, keys, args in scripts)
        )
        for n, (script, keys, args) in enumerate(scripts):
            if isinstance(replies[n], NoScriptError):
                [replies[n]] = self.line.send(("EVAL", script.script, len(keys), *keys, *args))
        return [partial(_answer, reply) for reply in replies]


def _answer(reply: Any) -> Any:
    if isinstance(reply, redis.RedisError):
        raise reply
    return reply
