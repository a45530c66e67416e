"""The worker: claim, handle, settle, wait; and stop without leaving anything leased.

One thread at a time waits and claims; the others handle what they claimed. So however many
threads there are, an idle worker asks Redis once per slow poll, and sleeps in between until
exactly when the next task is due.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import isqrt
from typing import TypeVar

import redis
import structlog

from .backoff import Backoff
from .connection import connect
from .errors import LeaseLost, Unavailable, described
from .flow import Flow, Task
from .isolation import Handled, handle
from .logs import log_failure
from .queue import Claim, DelayQueue
from .renewal import Renewer
from .sweep import Sweeper
from .waker import Waker

T = TypeVar("T")
log = structlog.get_logger("worker")

#: Longest wait between two looks at the queue. Every peer that trusted its wake-up signal
#: alone has had workers that slept for ever.
SLOW_POLL_SECONDS = 5.0
#: How long a stopping worker waits for its handlers. Supervisors kill after 10 s.
DRAIN_SECONDS = 8.0
#: How long a claim whose tasks are handled one at a time may take: those that wait their turn could
#: be running in another thread or worker.
SHARE_SECONDS = 0.5
#: How often to look whether Redis, or what a handler needs, is back.
RECONNECT = Backoff(base_seconds=0.1, cap_seconds=1.0)
PROBE = Backoff(base_seconds=0.2, cap_seconds=2.0)


class Station:
    """A flow at work: its queue, and whether what it needs is up."""

    def __init__(self, flow: Flow, queue: DelayQueue) -> None:
        self.flow = flow
        self.queue = queue
        self.up = threading.Event()
        #: How many tasks to claim.
        self.limit = 1 if flow.one_at_a_time else flow.batch_size
        #: Outages since a batch was handled: the longer the row, the longer the next probe waits.
        self.outages = 0

    def split_suspects(self, tasks: list[Task]) -> tuple[list[Task], list[Task]]:
        """What to handle now, and what to give back first.

        A task whose lease expired may have killed its worker. Such suspects are handled a few
        at a time, and alone if it happens again, with nothing else leased: so the one that
        kills is told from its neighbours before they reach ``max_deliveries``.
        """
        worst = max(task.deliveries for task in tasks)
        if worst == 0:
            return tasks, []
        size = 1 if worst > 1 else isqrt(self.flow.batch_size)
        suspects = [task for task in tasks if task.deliveries == worst][:size]
        chosen = {task.id for task in suspects}
        return suspects, [task for task in tasks if task.id not in chosen]

    def adapt(self, handled: Handled, seconds: float) -> None:
        """Halve the limit if tasks were left untouched, or if handling them one at a time took
        longer than `SHARE_SECONDS`. Otherwise double it; one at a time, only if it took less than
        half of that.
        """
        if not handled.outage:
            self.outages = 0
        alone = self.flow.one_at_a_time
        if handled.untouched or (alone and seconds > SHARE_SECONDS):
            self.limit = max(1, self.limit // 2)
        elif not alone or seconds < SHARE_SECONDS / 2:
            self.limit = min(self.flow.batch_size, self.limit * 2)


class Worker:
    """Runs flows, in strict priority order, until it is stopped."""

    def __init__(self, flows: Sequence[Flow], redis_url: str, *, threads: int = 1) -> None:
        names = Counter(flow.name for flow in flows)
        if not flows or max(names.values()) > 1:
            raise ValueError(
                f"a worker needs at least one flow, each with a unique name, not {[*names]}"
            )
        if threads < 1:
            raise ValueError(f"a worker needs at least one thread, not {threads}")
        #: What was done so far: done, retried, failed, dead, released, stale, restored.
        self.counts: Counter[str] = Counter()
        self._client = connect(redis_url, max_connections=threads + 2)
        self._stations = [Station(flow, DelayQueue(self._client, flow.name)) for flow in flows]
        self._stopping = threading.Event()
        self._alarm = threading.Event()
        self._turn = threading.Lock()
        self._outage = threading.Lock()
        self._crash: BaseException | None = None
        self._redis_failures = 0
        self._server_checked = False
        self._renewer = Renewer(flows)
        self._handlers = [self._thread(f"worker {n}", self._work) for n in range(1, threads + 1)]
        channels = [station.queue.keys.wake for station in self._stations]
        waker = Waker(self._client, channels, self._alarm, self._stopping)
        self._helpers = [
            self._thread("waker", waker.run),
            self._thread("renewer", self._renewer.run),
        ]
        for station in self._stations:
            flow = station.flow
            if flow.sweep is not None:
                # A connection of its own, and less patience: it must keep its pace while
                # Redis is silent.
                queue = DelayQueue(connect(redis_url, timeout_seconds=0.5), flow.name)
                sweeper = Sweeper(
                    flow,
                    flow.sweep,
                    queue=queue,
                    claims=station.queue,
                    alarm=self._alarm,
                    stopping=self._stopping,
                    counts=self.counts,
                )
                self._helpers.append(self._thread(f"sweep {flow.name}", sweeper.run))

    def run(self) -> None:
        """Work until `stop`. Raises what ended the worker otherwise, UnsafeServer for one."""
        self._check_server()
        log.info("started", queues=[station.flow.name for station in self._stations])
        for station in self._stations:
            self._begin_probing(station)
        for thread in [*self._helpers, *self._handlers]:
            thread.start()
        self._stopping.wait()
        deadline = time.monotonic() + DRAIN_SECONDS
        for thread in self._handlers:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._renewer.finish()
        stuck = [thread.name for thread in self._handlers if thread.is_alive()]
        log.info("stopped", stuck=stuck, **self.counts)
        if self._crash is not None:
            raise self._crash

    def stop(self) -> None:
        """Claim no more, finish or give back what is held, and return from `run`."""
        self._stopping.set()
        self._alarm.set()

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """A thread whose death ends the worker, which would otherwise go on without it."""

        def watched() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001  SystemExit is one that threads hide
                self._crash = error
                self.stop()
                log.critical("thread died", thread=name, error=described(error))

        return threading.Thread(target=watched, name=name, daemon=True)

    # -- claim and wait --------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._turn:
                claimed = self._next()
            if claimed is None:
                return
            self._handle(*claimed)

    def _next(self) -> tuple[Station, Claim, float] | None:
        """Wait for the next batch, and when it was asked for; None when stopping."""
        while not self._stopping.is_set():
            self._alarm.clear()
            wait = SLOW_POLL_SECONDS
            try:
                for station in self._stations:
                    if not station.up.is_set():
                        continue
                    asked_at = time.monotonic()
                    claim = station.queue.claim(
                        station.limit, round(station.flow.lease_seconds * 1000)
                    )
                    if claim.tasks:
                        self._redis_answered()
                        return station, claim, asked_at
                    if claim.next_in_ms is not None:
                        wait = min(wait, claim.next_in_ms / 1000)
                    self._redis_answered()
            except redis.RedisError as error:
                wait = self._redis_failed(error)
            if not self._stopping.is_set():
                self._alarm.wait(wait)
        return None

    def _redis_failed(self, error: redis.RedisError) -> float:
        """Note an outage of Redis, whatever the error; return how long to wait, in seconds."""
        if self._redis_failures == 0:
            log.error("Redis does not serve claims", error=described(error))
        self._redis_failures += 1
        self._server_checked = False  # it may come back as another server
        return RECONNECT.delay_ms(self._redis_failures) / 1000

    def _redis_answered(self) -> None:
        if self._redis_failures:
            log.info("Redis serves claims again", failed_claims=self._redis_failures)
            self._redis_failures = 0
        if not self._server_checked:
            self._check_server()

    def _check_server(self) -> None:
        try:
            warnings = self._stations[0].queue.check_server()
        except redis.RedisError as error:
            log.warning("Redis could not be checked yet", error=described(error))
            return
        self._server_checked = True
        for warning in warnings:
            log.warning(warning)

    # -- handle and settle -----------------------------------------------------------------

    def _handle(self, station: Station, claim: Claim, claimed_at: float) -> None:
        flow = station.flow
        tasks, others = station.split_suspects(claim.tasks)
        self._write("released", others, station.queue.release)
        if tasks[0].deliveries >= flow.max_deliveries:
            reason = f"delivered {flow.max_deliveries} times and never settled"
            self._bury(station, [(task, reason, None) for task in tasks])
            return
        began = time.monotonic()
        handled, settled = Handled(), True

        def keep_going(batch: Sequence[Task]) -> bool:
            # What Redis did not take comes again: the less of that the better. And what waits for
            # slow tasks is given back, for another thread or worker.
            shared = not flow.one_at_a_time or time.monotonic() - began < SHARE_SECONDS
            return settled and shared and not self._stopping.is_set() and held.begin(batch)

        with self._renewer.holding(flow, station.queue, tasks, claimed_at) as held:
            for part in handle(flow, tasks, keep_going):
                if part.outage:
                    self._take_down(station, part.outage)
                held.let_go(part)
                settled = self._settle(station, part)
                handled.merge(part)
        station.adapt(handled, time.monotonic() - began)
        now_ms = time.time() * 1000  # for people: nothing is decided by it
        log.info(
            "batch",
            queue=flow.name,
            tasks=len(tasks),
            done=len(handled.done),
            retries=len(handled.retries),
            failed=len(handled.failed),
            late_ms=round(now_ms - min(task.due_at_ms for task in tasks)),
        )

    def _settle(self, station: Station, handled: Handled) -> bool:
        """Tell Redis what became of tasks; whether it took all of it."""
        queue, flow = station.queue, station.flow
        again = [
            (task, flow.backoff.delay_ms(task.failures + 1))
            for task, _ in handled.failed
            if task.failures + 1 < flow.max_failures
        ]
        buried = [(task, letter.reason, letter.__cause__) for task, letter in handled.dead] + [
            (task._replace(failures=task.failures + 1), "failed too often", error)
            for task, error in handled.failed
            if task.failures + 1 >= flow.max_failures
        ]
        delayed = [(task, max(1.0, retry.delay_ms)) for task, retry in handled.retries]
        taken = [
            self._write("done", handled.done, queue.ack),
            self._write("retried", delayed, queue.retry),
            self._write("failed", again, partial(queue.retry, failed=True)),
            self._bury(station, buried),
            self._write("released", handled.untouched, queue.release),
        ]
        for task, error in handled.failed:
            log_failure(flow.name, task.id, error)
        return all(taken)

    def _bury(
        self, station: Station, burials: list[tuple[Task, str, BaseException | None]]
    ) -> bool:
        taken = self._write("dead", burials, station.queue.dead_letter)
        for task, reason, _ in burials:
            log.error("dead letter", queue=station.flow.name, id=task.id, reason=reason)
        return taken

    def _write(self, count: str, rows: list[T], write: Callable[[list[T]], None]) -> bool:
        """Settle ``rows``, if there are any, and count them; whether Redis took it.

        What cannot be written is left to the lease: it ends, and the tasks come again.
        """
        if not rows:
            return True
        try:
            write(rows)
        except LeaseLost as lost:
            self.counts["stale"] += len(lost.ids)
            self.counts[count] += len(rows) - len(lost.ids)
            log.warning("lease lost, nothing written", verb=count, tasks=len(lost.ids))
        except redis.RedisError as error:
            log.warning("not settled", verb=count, tasks=len(rows), error=described(error))
            return False
        else:
            self.counts[count] += len(rows)
        return True

    # -- outages of what a handler needs ---------------------------------------------------

    def _take_down(self, station: Station, outage: Unavailable) -> None:
        """Claim nothing of this flow until its probe says that it can go on."""
        with self._outage:  # never the turn: who has that may wait until this batch's lease ends
            if station.up.is_set():
                station.up.clear()
                log.error("unavailable", queue=station.flow.name, error=str(outage))
                station.outages += 1
                self._begin_probing(station, attempt=station.outages)

    def _begin_probing(self, station: Station, attempt: int = 0) -> None:
        probe = partial(self._probe, station, attempt)
        self._thread(f"probe {station.flow.name}", probe).start()

    def _probe(self, station: Station, attempt: int) -> None:
        probe = station.flow.probe
        while not (attempt and self._stopping.wait(PROBE.delay_ms(attempt) / 1000)):
            try:
                if probe is not None:
                    probe()
            except Exception as error:  # noqa: BLE001  a probe that fails in any way says no
                attempt += 1
                if attempt == 1:
                    log.warning("not ready", queue=station.flow.name, error=described(error))
                continue
            log.info("available", queue=station.flow.name)
            station.up.set()
            self._alarm.set()
            return
