"""Parts of the engine without threads or a server, on a clock that the test moves."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import fakeredis
import redis

from worker import DelayQueue, Flow, events
from worker.queue.environment import REAL, Environment
from worker.runtime.gate import Gate
from worker.runtime.shared import Shared
from worker.runtime.station import ServerCheck, Station
from worker.runtime.waker import Alarm

E = TypeVar("E", bound=events.Event)

#: Every kind of event there is.
EVENT_KINDS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
]


class Clock:
    """The monotonic clock of an environment, and the clock of `ClockedQueue`'s server."""

    def __init__(self) -> None:
        #: Whole seconds of today, because the fake's own TIME cannot be moved.
        self.now = float(round(time.time()))
        self.environment = Environment(clock=self)

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


class ClockedQueue(DelayQueue):
    """A queue on a fake Redis that has the test's clock. Notes which scripts were called."""

    def __init__(self, name: str, clock: Clock, server: fakeredis.FakeServer | None = None) -> None:
        client = fakeredis.FakeRedis(server=server, protocol=2)
        super().__init__(client, name, environment=clock.environment)
        #: As after its first claim.
        self.memory.server_ahead_ms = 1000 * (clock.now - self.environment.clock())
        self.clock = clock
        self.calls: list[str] = []
        #: Called before each script, which it may keep from running.
        self.before: Callable[[str], None] = lambda _: None

    def _run(self, name: str, now_ms: int | None, *args: Any, **options: Any) -> Any:
        self.calls.append(name)
        self.before(name)
        now_ms = round(self.clock.now * 1000) if now_ms is None else now_ms
        return super()._run(name, now_ms, *args, **options)

    def check_server(self) -> None: ...

    def scheduled(self) -> dict[str, int]:
        """Task id -> ms until it is due."""
        return self._due_in(self.keys.scheduled)

    def leased(self) -> dict[str, int]:
        """Task id -> ms until its lease ends."""
        return self._due_in(self.keys.leased)

    def dead_now(self) -> set[str]:
        return {letter.id for letter in self.dead()}

    def _due_in(self, key: str) -> dict[str, int]:
        found: Any = self._redis.zrange(key, 0, -1, withscores=True)
        return {task_id.decode(): round(score - self.clock.now * 1000) for task_id, score in found}


class Heard(list[events.Event]):
    """A listener that remembers."""

    def __call__(self, event: events.Event) -> None:
        self.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kind)]


class Wait(threading.Event):
    """Moves the clock instead of waiting, notes for how long, and calls ``after`` each time."""

    def __init__(
        self, clock: Clock | None = None, after: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.after = after
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if self.is_set():
            return True
        self.waits.append(timeout)
        if self._clock is not None:
            self._clock.move(timeout)
        self.after()
        return self.is_set()


class LaneWait(Alarm):
    """The same in place of a lane's alarm."""

    def __init__(
        self, clock: Clock | None = None, after: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(clock or REAL.clock)
        self._event = Wait(clock, after)
        self.waits = self._event.waits

    def set(self, in_seconds: float = 0.0) -> None:
        assert in_seconds == 0.0
        self._event.set()

    def clear(self) -> bool:
        was_set = self._event.is_set()
        self._event.clear()
        return was_set

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)


class Refusing:
    """For `ClockedQueue.before`: raises instead of running a script, or any."""

    def __init__(self, error: redis.RedisError, *names: str) -> None:
        self._error = error
        self._names = names

    def __call__(self, name: str) -> None:
        if not self._names or name in self._names:
            raise self._error


def station_of(flow: Flow, queue: DelayQueue, *, shared: Shared | None = None) -> Station:
    """A flow at work, which is up and never probes by itself."""
    shared = shared or shared_by(queue.environment)
    gate = Gate(flow, shared, on_up=lambda: None)
    gate._up = True
    return Station(flow, queue, shared, gate=gate, server=ServerCheck(queue))


def shared_by(
    environment: Environment,
    emit: events.Listener = lambda _: None,
    stopping: threading.Event | None = None,
) -> Shared:
    """What the parts of a worker share that starts no threads."""
    stopping = threading.Event() if stopping is None else stopping
    return Shared(emit, environment, stopping, start=lambda _name, _run: None)
