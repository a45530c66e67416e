"""The worker: assembles the parts that its flows need, runs them in threads, and stops them."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import redis

from .. import events
from ..errors import UnsafeServer, described
from ..flow import Flow
from ..log import log
from ..queue.delay_queue import DelayQueue
from ..queue.environment import REAL, Environment
from .event_log import EventLog
from .heartbeat import Heartbeat, new_worker_id
from .lane import Lane
from .liveness import Liveness, Watched, WorkerHealth
from .shared import Shared, repeat
from .station import ServerCheck, Station
from .sweep import Sweeper
from .ticks import Ticks
from .waker import Waker

#: How long a stopping worker waits for its handlers. Supervisors kill after 10 s.
DRAIN_SECONDS = 8.0
#: How much of that is left for settling what `Flow.finish` waited for.
SETTLE_SECONDS = 1.0
#: The timeout of sweeps, as a fraction of the worker's.
SWEEP_TIMEOUT = 0.5


class Worker:
    """Runs flows until it is stopped, as ``python -m worker run`` does::

        Worker([Flow(name="reminders", handler=remind)], "redis://localhost:6379/0").run()

    Each flow has its own threads, so that none delays another: as many as the flow says, otherwise ``threads``.
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        redis_url: str,
        *,
        threads: int = 1,
        listeners: Sequence[events.Listener] = (),
        redis_timeout_seconds: float = 1.0,
        environment: Environment = REAL,
    ) -> None:
        """``listeners`` get every event of `events`, after the log.

        ``redis_timeout_seconds`` limits the wait for one reply of Redis; raise it for a slow network.

        Raises ValueError for no flows, two of the same name, or fewer than one thread.
        """
        names = Counter(flow.name for flow in flows)
        if not flows or max(names.values()) > 1:
            raise ValueError(
                f"a worker needs at least one flow, each with a unique name, not {[*names]}"
            )
        if threads < 1:
            raise ValueError(f"a worker needs at least one thread, not {threads}")
        self._environment, self._clock = environment, environment.clock
        self.id = new_worker_id(environment.token)
        #: Tasks so far by what became of them: done, retried, failed, dead, released, stale (their
        #: lease was lost), restored, handled without Redis.
        self.counts: Counter[str] = Counter()
        emit = events.Listeners([EventLog(self._clock), *listeners])
        self._stopping = threading.Event()
        self._shared = Shared(emit, environment, self._stopping, self.counts, start=self._start)
        self._crash: BaseException | None = None

        sizes = [flow.threads or threads for flow in flows]
        # One connection for each thread: handlers, renewals, the waker, the heartbeat, `run`, and pauses.
        most = sum(sizes) + len(flows) + 3 + sum(flow.pauses is not None for flow in flows)
        self._client = environment.connect(
            redis_url, timeout_seconds=redis_timeout_seconds, max_connections=most
        )
        # Sweeps have a shorter timeout, so that they keep their pace while Redis is silent.
        self._sweep_client = environment.connect(
            redis_url,
            timeout_seconds=SWEEP_TIMEOUT * redis_timeout_seconds,
            max_connections=len(flows),
        )
        self._server = ServerCheck(DelayQueue(self._client, flows[0].name))
        self._handlers: list[threading.Thread] = []
        self._watched: list[Watched] = []
        self._liveness = Liveness(self.id, self._watched, self._stopping)
        for flow, size in zip(flows, sizes, strict=True):
            self._watched.append(self._add_lane(flow, size))

    def run(self) -> None:
        """Work until `stop` is called. Raises whatever else ended the worker.

        Raises UnsafeServer at once if Redis may delete tasks and no flow has a sweep: there is nothing to do.
        """
        try:
            self._server.check()
        except UnsafeServer:
            if not self._sweepers:
                raise
        queues = [station.queue for station in self._stations]
        log.info("started", worker=self.id, queues=[each.name for each in queues])
        for station in self._stations:
            station.gate.check()
        # These are joined, as they may be in the application's code; the helpers end with their connections.
        workers = [*self._handlers, *self._background()]
        threads = [*self._helpers(), *workers]
        for thread in threads:
            thread.start()
        self._liveness.watch(threads)
        self._stopping.wait()
        self._drain(workers)
        self._client.close()
        self._sweep_client.close()
        stuck = [thread.name for thread in workers if thread.is_alive()]
        log.info("stopped", stuck=stuck, **self.counts)
        if self._crash is not None:
            raise self._crash

    def _drain(self, workers: Sequence[threading.Thread]) -> None:
        """Wait for the handlers, and release what they do not finish in time."""
        deadline = self._clock() + DRAIN_SECONDS
        for station in self._stations:
            if station.flow.finish is not None:
                try:
                    station.flow.finish(max(0.0, deadline - SETTLE_SECONDS - self._clock()))
                except BaseException:  # the application's code may raise anything
                    log.exception("finish failed", queue=station.queue.name)
        for thread in workers:
            thread.join(max(0.0, deadline - self._clock()))
        for station in self._stations:
            station.renewer.finish()
            if self._clock() < deadline:  # each silence of Redis costs a second
                with suppress(redis.RedisError):
                    station.catch_up()
        for station in self._stations:
            if not station.release_held():
                break

    def stop(self) -> None:
        """Claim nothing more, finish the tasks that are held, and return from `run`.

        Tasks that take longer than `DRAIN_SECONDS` are released uncounted, so end the process then: they may
        start elsewhere.
        """
        self._stopping.set()
        for each in self._watched:
            each.lane.alarm.set()

    def health(self) -> WorkerHealth:
        """Whether the worker does its work, and if not, why not. Any thread may call it; it returns at once."""
        return self._liveness.report(self._clock())

    # -- assembly --------------------------------------------------------------------------

    @property
    def _stations(self) -> list[Station]:
        return [each.station for each in self._watched]

    @property
    def _sweepers(self) -> list[Sweeper]:
        return [each.sweeper for each in self._watched if each.sweeper]

    def _add_lane(self, flow: Flow, size: int) -> Watched:
        lane = Lane(self._shared)
        station = lane.add(flow, self._client, self._server)
        for n in range(1, size + 1):
            self._handlers.append(self._thread(f"{flow.name} {n}", lane.run))
        return Watched(station, lane, self._add_sweeper(station, lane))

    def _add_sweeper(self, station: Station, lane: Lane) -> Sweeper | None:
        if station.flow.sweep is None:
            return None
        return Sweeper(
            station,
            station.flow.sweep,
            queue=DelayQueue(self._sweep_client, station.flow.name, environment=self._environment),
            worker_id=self.id,
            alarm=lane.alarm,
        )

    def _background(self) -> list[threading.Thread]:
        watched = [station.gate.hang_detector for station in self._stations]
        watched += [sweeper.hang_detector for sweeper in self._sweepers]
        heartbeat = Heartbeat(self.id, self._stations, watched, self._stopping)
        threads = [self._thread(f"sweep {each.name}", each.run) for each in self._sweepers]
        for station, lane, _ in self._watched:
            if station.flow.pauses is not None:
                look = partial(station.pause.round, lane.alarm.set)
                threads.append(self._repeated(f"pause {station.queue.name}", look))
            if station.flow.tick is not None:
                ticks = Ticks(station.queue.name, station.flow.tick, self._clock)
                threads.append(self._repeated(f"ticks {station.queue.name}", ticks.round))
        return [*threads, self._thread("heartbeat", heartbeat.run)]

    def _helpers(self) -> list[threading.Thread]:
        alarms = {each.station.queue.keys.channel: each.lane.alarm for each in self._watched}
        waker = self._thread("waker", Waker(self._client, alarms, self._stopping).run)
        return [
            waker,
            *(
                self._thread(f"renewer {each.queue.name}", each.renewer.run)
                for each in self._stations
            ),
        ]

    def _repeated(self, name: str, run: Callable[[], float]) -> threading.Thread:
        """Runs it again and again until the worker stops."""
        return self._thread(name, lambda: repeat(run, self._stopping))

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """A thread that stops the worker if it dies, so that the worker never goes on without it."""

        def watched() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001  Python would only print it
                self._crash = self._crash or error
                thread = threading.current_thread().name
                self._liveness.died(thread)
                self.stop()
                log.critical("thread died", thread=thread, error=described(error))

        return threading.Thread(target=watched, name=name, daemon=True)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        self._thread(name, run).start()
