"""A queue's client, keys and scripts."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError

from ..flow import Task
from ..log import log
from .connection import client_for
from .environment import REAL, Environment, Memory
from .keys import Keys
from .scripts import scripts

T = TypeVar("T")
#: Whose level says whether calls are logged.
LOGGER = logging.getLogger("worker")
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


class Noting:
    """Logs what calls do to each task, for the command ``replay``."""

    name: str
    environment: Environment = REAL

    @property
    def _by(self) -> str:
        """Who calls, if that is one who claims."""
        return ""

    def _kept(self, rows: Iterable[T]) -> Iterable[T]:
        """These rows, so that `_note` can name them after a call has used them up."""
        if isinstance(rows, Sequence) or not LOGGER.isEnabledFor(logging.DEBUG):
            return rows
        return [*rows]

    def _note(self, call: str, began: float, rows: Iterable[Any], **facts: Any) -> None:
        """Log what a call did to each task, for the command ``replay``."""
        if not LOGGER.isEnabledFor(logging.DEBUG):
            return
        # A claim without a reply may have leased any task.
        if (each := [*map(_shown, rows)]) or (call == "claim" and "unanswered" in facts):
            ms = round(1000 * (self.environment.clock() - began), 3)
            log.debug(call, queue=self.name, by=self._by, took_ms=ms, each=each, **facts)

    def _noted_if_lost(self, call: str, began: float, rows: Iterable[Any]) -> "_OnLoss":
        """Log a call that got no reply, and may have been executed all the same."""
        return _OnLoss(partial(self._note, call, began, rows, unanswered=True))


class _OnLoss:
    """A context manager that calls this if the reply is lost. One made from a generator costs twice as many calls."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if isinstance(error, redis.RedisError | asyncio.CancelledError):
            self._act()


class ScriptedQueue(Noting):
    """The queue ``name`` on ``client``. Raises ValueError for a client that decodes responses."""

    def __init__(self, client: redis.Redis, name: str, *, environment: Environment = REAL) -> None:
        client = client_for(client, name)
        if isinstance(client, redis.Redis):
            refuse_decoding(client)
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

    @property
    def _by(self) -> str:
        return self.memory.claimer

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


def _shown(row: Any) -> list[Any]:
    """What the log tells of a task: as much of its token as tells it from others."""
    match row:
        case str():
            return [row]
        case (Task() as task) | (Task() as task, *_):
            return [task.id, task.attempt, task.token[:8], task.due_at_ms]
    return [*row]


def refuse_decoding(client: Any) -> None:
    """Raises ValueError for a client that decodes responses."""
    if client.get_encoder().decode_responses:
        raise ValueError("payloads are bytes: the client must not have decode_responses=True")
