"""A queue without a worker process: take a task that is due; it is settled when the block ends."""

import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Self, Unpack, overload

import redis

from .. import events
from ..errors import ConsumerClosed, Unavailable, fatal
from ..flow import MAX_SECONDS, CommonSettings, Flow, Outcome, Task
from ..queue.delay_queue import DelayQueue
from ..queue.environment import REAL, Environment
from .event_log import EventLog
from .isolation import BatchResult, results_of_error
from .lane import Batch, Lane
from .renewal import HeldTasks
from .shared import Shared
from .station import ServerCheck
from .waker import Waker


class Consumer:
    """Takes tasks off queues as they become due, for any number of threads::

        with Consumer("redis://localhost:6379/0", ["high", "low"]) as consumer:
            while True:
                with consumer.take() as task:
                    send_mail(task.payload)

    The queue named first goes first, as long as it has anything due. A wait ends as soon as a task is due, and
    costs one command per queue every five seconds. It continues while Redis does not answer. The lease
    is extended until the block ends. Delivery is at least once.

    ``settings`` are ``lease_seconds``, ``max_runtime_seconds``, ``max_failures``, ``max_deliveries`` and
    ``backoff``; they mean the same as for a `Flow`.
    """

    def __init__(
        self,
        client: redis.Redis | str,
        queues: str | Sequence[str],
        *,
        listeners: Sequence[events.Listener] = (),
        environment: Environment = REAL,
        **settings: Unpack[CommonSettings],
    ) -> None:
        """``client`` is a client made by `connect`, or a URL from which the consumer makes its own.

        Nothing is sent before the first `take`. From then on one connection listens until `close`, so a
        client needs more connections than it has consumers.

        ``listeners`` get every event of `events`, after the log. Raises ValueError for settings that a
        `Flow` refuses.
        """
        names = [queues] if isinstance(queues, str) else [*queues]
        if not names or len({*names}) < len(names):
            raise ValueError(f"a consumer needs at least one queue, and each once, not {names}")
        emit = events.Listeners([EventLog(environment.clock), *listeners])
        self._shared = Shared(emit, environment)
        #: Tasks so far by what became of them: done, retried, failed, dead, released, stale (their
        #: lease was lost).
        self.counts: Counter[str] = self._shared.counts
        self._made: redis.Redis | None = None
        if isinstance(client, str):
            client = self._made = environment.connect(client)
        self._client, self._clock = client, environment.clock
        #: Whoever may send a command: the consumer until it is closed, and each `take` until its block ends.
        #: The last one closes the client that the consumer made, so that no reply is lost.
        self._users: set[object] = {self}
        self._stopping = self._shared.stopping
        # Reentrant: a signal may interrupt the first `take`, and its handler may close the consumer.
        self._beginning = threading.RLock()
        self._begun = False
        self._server = ServerCheck(DelayQueue(self._client, names[0]))
        self._lane = Lane(self._shared)
        for name in names:
            # The body of the block is the handler.
            flow = Flow(name=name, handler=lambda _: None, batch_size=1, **settings)
            self._lane.add(flow, self._client, self._server)

    # -- taking ----------------------------------------------------------------------------

    @overload
    def take(self) -> AbstractContextManager[Task]: ...
    @overload
    def take(self, timeout_seconds: float | None) -> AbstractContextManager[Task | None]: ...
    @contextmanager
    def take(self, timeout_seconds: float | None = None) -> Iterator[Any]:
        """Wait for a task that is due, and settle it when the block ends; None after the timeout::

            with consumer.take(timeout_seconds=10) as task:
                if task is not None:
                    send_mail(task.payload)

        At the end of the block the task is done. An exception means what it means in a handler: `Retry`,
        `Reschedule`, `NoOp`, `DeadLetter` and `Failed` say what becomes of the task; `Unavailable` puts it
        back uncounted, and nothing is taken for a while. None of these propagates. Any other exception means
        that the task has failed, and propagates. Ending the process (Ctrl-C, `sys.exit`) puts the task back
        uncounted.

        Raises ConsumerClosed, also when the consumer is closed during the wait. The first call raises
        UnsafeServer if Redis may delete tasks on its own; later that is an outage of Redis.
        """
        if timeout_seconds is not None and not 0 <= timeout_seconds <= MAX_SECONDS:
            raise ValueError(f"timeout_seconds is 0 to a year, not {timeout_seconds}")
        until = math.inf if timeout_seconds is None else self._clock() + timeout_seconds
        with ExitStack() as block:
            self._users.add(block)
            block.callback(self._leave, block)
            self._begin()
            found = self._next(until, block)
            if found is None:
                yield None
                return
            batch, held = found
            [task] = batch.tasks
            try:
                yield task
            except GeneratorExit:  # a generator that took it was left, and it is not known why
                raise
            except fatal():
                self._settle(batch, held, BatchResult(untouched=[task]))
                raise
            except BaseException as error:
                self._settle(batch, held, results_of_error(batch.station.flow, [task], error))
                if not isinstance(error, Outcome | Unavailable):
                    raise
            else:
                self._settle(batch, held, BatchResult(done=[task]))

    def _next(self, until: float, block: ExitStack) -> tuple[Batch, HeldTasks] | None:
        """The next task, whose lease is extended until ``block`` ends; None after ``until``.

        Raises ConsumerClosed.
        """
        while (batch := self._lane.next(until)) is not None:
            tasks = self._lane.bury_undeliverable(batch)
            if not tasks or not block.enter_context(self._lane.beginning(batch, tasks)):
                continue
            held = block.enter_context(batch.station.renewer.holding(tasks, batch.claimed_at))
            if not self._stopping.is_set() and held.begin(tasks):
                return batch, held
            # The consumer was closed meanwhile. Or this process was frozen, or Redis slow: the lease may have ended.
            self._settle(batch, held, BatchResult(untouched=tasks))
        if self._stopping.is_set():
            raise ConsumerClosed
        return None

    def _settle(self, batch: Batch, held: HeldTasks, results: BatchResult) -> None:
        ended_at = self._clock()
        self._lane.settle(batch, held, results)
        self._lane.report(batch, held, results, ended_at)
        batch.station.adapt(results)

    # -- beginning and ending --------------------------------------------------------------

    def close(self) -> None:
        """End every wait, and the threads and connections that the consumer made.

        A block that is still open is settled when it ends, but its lease is no longer extended; the last one
        closes the connections. If you passed a client, the thread that listens on it ends within five seconds.
        """
        self._stopping.set()
        self._lane.alarm.set()
        with self._beginning:
            for station in self._lane.stations:
                station.renewer.finish()
                # If it fails, the tasks are delivered again when their lease ends.
                with suppress(redis.RedisError):
                    station.catch_up()
        self._leave(self)

    def _leave(self, user: object) -> None:
        """Note that a user sends no more commands. Needs no lock, which a signal's handler might wait for."""
        self._users.discard(user)
        if self._made is not None and not self._users:
            self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Start the threads, once. Raises ConsumerClosed, and UnsafeServer."""
        with self._beginning:
            if self._stopping.is_set():
                raise ConsumerClosed
            if self._begun:
                return
            self._server.check()
            stations = self._lane.stations
            for station in stations:
                station.gate.check()
            alarms = {station.queue.keys.channel: self._lane.alarm for station in stations}
            self._shared.start("waker", Waker(self._client, alarms, self._stopping).run)
            for station in stations:
                self._shared.start(f"renewer {station.queue.name}", station.renewer.run)
            self._begun = True
