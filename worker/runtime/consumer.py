"""A queue without a worker process: take a task that is due; it is settled when the block ends."""

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Self, Unpack, overload

import redis

from .. import events
from ..errors import FATAL, ConsumerClosed, Unavailable
from ..flow import MAX_BATCH_SIZE, MAX_SECONDS, CommonSettings, Flow, Outcome, Task
from ..queue.delay_queue import DelayQueue
from ..queue.environment import REAL, Environment
from .event_log import EventLog
from .isolation import results_of, results_of_error
from .lane import Batch, Lane
from .renewal import HeldTasks
from .results import BatchResult
from .rounds import Rounds
from .server_check import ServerCheck
from .shared import Shared
from .waker import Waker


class Taken(list[Task]):
    """Tasks that were taken together. When the block ends, each is done unless it has an outcome."""

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        super().__init__(tasks)
        #: The outcomes of tasks that are not done, by task id, as a handler would return them.
        self.outcomes: dict[str, Outcome] = {}


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
            flow = Flow(name=name, handler=lambda _: None, batch_size=MAX_BATCH_SIZE, **settings)
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
        `Reschedule`, `DeadLetter` and `Failed` say what becomes of the task; `Unavailable` puts it
        back uncounted, and nothing is taken for a while. None of these propagates. Any other exception means
        that the task has failed, and propagates. Ending the process (Ctrl-C, `sys.exit`) puts the task back
        uncounted.

        Raises ConsumerClosed, also when the consumer is closed during the wait. The first call raises
        UnsafeServer if Redis may delete tasks on its own; later that is an outage of Redis.
        """
        with self.take_many(1, timeout_seconds) as tasks:
            yield tasks[0] if tasks else None

    @contextmanager
    def take_many(self, limit: int, timeout_seconds: float | None = None) -> Iterator[Taken]:
        """Wait for up to ``limit`` tasks of one queue, and settle them together; none after the timeout::

            with consumer.take_many(100) as tasks:
                for task, sent in zip(tasks, send_mails(tasks)):
                    if not sent:
                        tasks.outcomes[task.id] = Failed("refused")

        At the end of the block each task without an outcome is done. An exception does not say which of
        several tasks is at fault, and no task should fail because of another. So tasks without an outcome are
        left leased, as if the process had died: they are delivered again when the lease ends, a few at a time,
        and then alone. If only one task was taken, an exception means what it means in `take`. `Unavailable`
        puts all tasks without an outcome back. Raises as `take` does, and ValueError for a limit that is not
        1 to 2,000.
        """
        if not 1 <= limit <= MAX_BATCH_SIZE:
            raise ValueError(f"limit is 1 to {MAX_BATCH_SIZE}, not {limit}")
        if timeout_seconds is not None and not 0 <= timeout_seconds <= MAX_SECONDS:
            raise ValueError(f"timeout_seconds is 0 to a year, not {timeout_seconds}")
        until = math.inf if timeout_seconds is None else self._clock() + timeout_seconds
        with ExitStack() as block:
            self._users.add(block)
            block.callback(self._leave, block)
            self._begin()
            found = self._next(limit, until, block)
            if found is None:
                yield Taken()
                return
            batch, held = found
            taken = Taken(tasks := held.tasks())
            try:
                yield taken
            except GeneratorExit:  # a loop around the block was left, and it is not known why
                raise
            except BaseException as error:
                self._settle(
                    batch, held, _results(batch.station.flow, tasks, taken.outcomes, error)
                )
                if not isinstance(error, Outcome | Unavailable):
                    raise
            else:
                self._settle(batch, held, _results(batch.station.flow, tasks, taken.outcomes))

    def __iter__(self) -> Iterator[Task]:
        """Yield each task that is due, until the consumer is closed. Asking for the next task settles the last.

        Leaving the loop, with ``break`` or an exception, does not say what became of the last task. It
        is left leased, as if the process had died, and is delivered again when the lease ends. So `take`,
        which notices a failure, is the better choice where tasks may fail.
        """
        with suppress(ConsumerClosed):
            while True:
                with self.take() as task:
                    yield task

    def _next(self, limit: int, until: float, block: ExitStack) -> tuple[Batch, HeldTasks] | None:
        """The next tasks, whose lease is extended until ``block`` ends; None after ``until``.

        Raises ConsumerClosed.
        """
        while (batch := self._lane.next(limit, until)) is not None:
            tasks = self._lane.bury_undeliverable(batch)
            held = block.enter_context(batch.station.renewer.holding(tasks, batch.claimed_at))
            if tasks and not self._stopping.is_set() and held.begin(tasks):
                return batch, held
            # The consumer was closed meanwhile. Or this process was frozen, or Redis slow: the lease may have ended.
            self._settle(batch, held, BatchResult(untouched=tasks))
        if self._stopping.is_set():
            raise ConsumerClosed
        return None

    def _settle(self, batch: Batch, held: HeldTasks, results: BatchResult) -> None:
        self._lane.settle(batch, held, results)
        batch.station.adapt(results, 0.0)

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
                    station.settler.resend()
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
            alarms = {station.queue.keys.wake: self._lane.alarm for station in stations}
            self._shared.start("waker", Waker(self._client, alarms, self._stopping).run)
            renewals = Rounds(self._shared.start)
            for station in stations:
                renewals.add(f"renewer {station.queue.name}", station.renewer.round)
            self._shared.start("renewals", renewals.run)
            self._begun = True


def _results(
    flow: Flow,
    tasks: Sequence[Task],
    outcomes: Mapping[str, Outcome],
    error: BaseException | None = None,
) -> BatchResult:
    """What became of the tasks, as far as their block says."""
    if error is None or not isinstance(outcomes, Mapping):
        return results_of(flow, tasks, outcomes)
    named = [task for task in tasks if outcomes.get(task.id) is not None]
    others = [task for task in tasks if outcomes.get(task.id) is None]
    results = results_of(flow, named, outcomes)
    if isinstance(error, FATAL):
        results.untouched += others
    elif len(tasks) == 1 or isinstance(error, Unavailable):
        results.merge(results_of_error(flow, others, error))
    return results
