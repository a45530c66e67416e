"""Whether a worker does its work: what `Worker.health` reports and ``/healthz`` serves.

An outage is not a failure. While Redis is down the sweep continues from the records, and while the database
is down a worker can only wait. A restart would not help, so both are reported as degraded. A worker is
failing if a restart would help: a thread has died, or code does not return.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .hangs import HangDetector
from .lane import Lane
from .station import Station
from .sweep import Sweeper

#: Added to ``max_runtime_seconds``, because a call may end and be settled just then.
GRACE_SECONDS = 1.0

Status = Literal["ok", "degraded", "failing"]


@dataclass(frozen=True, slots=True)
class FlowHealth:
    """The health of one flow in one worker."""

    queue: str
    status: Status
    #: Why it is failing: problems that a restart would fix.
    failures: tuple[str, ...]
    #: The outages that it waits for.
    outages: tuple[str, ...]
    #: Whether its records say that it is paused.
    paused: bool = False


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The health of one worker."""

    worker: str
    status: Literal["starting", "ok", "degraded", "failing", "stopping"]
    #: Problems of the worker itself rather than of one of its flows.
    failures: tuple[str, ...]
    flows: tuple[FlowHealth, ...]

    @property
    def alive(self) -> bool:
        """Whether it works, waits for an outage to end, or is stopping. If not, a supervisor should restart it."""
        return self.status in ("ok", "degraded", "stopping")


class Watched(NamedTuple):
    """A flow and what runs it."""

    station: Station
    lane: Lane
    sweeper: Sweeper | None

    @property
    def detectors(self) -> Iterator[HangDetector]:
        """Those of its probe, of its lane's claims, and of its sweep if it has one."""
        yield self.station.gate.hang_detector
        yield self.lane.hang_detector
        if self.sweeper is not None:
            yield self.sweeper.hang_detector


class Liveness:
    """Derives a worker's health from the state that its threads keep. It never waits and sends no command.

    Any thread may use it.
    """

    def __init__(
        self, worker_id: str, watched: Sequence[Watched], stopping: threading.Event
    ) -> None:
        self._worker_id = worker_id
        self._watched = watched
        self._stopping = stopping
        self._threads: tuple[threading.Thread, ...] = ()
        self._died: list[str] = []

    def watch(self, threads: Sequence[threading.Thread]) -> None:
        """Expect these threads to live until the worker stops."""
        self._threads = (*threads,)

    def died(self, thread: str) -> None:
        """Note that an error ended a thread."""
        self._died.append(thread)

    def report(self, now: float) -> WorkerHealth:
        """The worker's health. ``now`` is on the monotonic clock, in seconds."""
        flows = tuple(_flow_health(each, now) for each in self._watched)
        failures = tuple(f"the thread {name!r} died" for name in self._dead())
        statuses = {flow.status for flow in flows}
        status: Literal["starting", "ok", "degraded", "failing", "stopping"] = "ok"
        if failures or "failing" in statuses:
            status = "failing"
        elif self._stopping.is_set():
            status = "stopping"
        elif not self._threads:
            status = "starting"
        elif "degraded" in statuses:
            status = "degraded"
        return WorkerHealth(self._worker_id, status, failures, flows)

    def _dead(self) -> list[str]:
        gone = [
            thread.name
            for thread in self._threads
            if not thread.is_alive() and not self._stopping.is_set()
        ]
        return [*dict.fromkeys([*self._died, *gone])]


def _flow_health(watched: Watched, now: float) -> FlowHealth:
    station = watched.station
    failures = [
        f"its {detector.what} has made no progress for {seconds:.0f} s"
        for detector in watched.detectors
        if (seconds := detector.hanging(now)) is not None
    ]
    limit = station.flow.max_runtime_seconds + GRACE_SECONDS
    longest = max((now - held.began_at for held in station.renewer.held()), default=0.0)
    if longest > limit:
        failures.append(f"its handler has run for {longest:.0f} s")
    outages = []
    if station.failing:
        outages.append("Redis does not serve claims")
    if station.gate.down:
        outages.append("something its handler needs is unavailable")
    elif watched.sweeper is not None and not watched.sweeper.records_answer:
        outages.append("its records cannot be read")
    status: Status = "failing" if failures else "degraded" if outages else "ok"
    paused = station.pause.found is not None
    return FlowHealth(station.queue.name, status, tuple(failures), tuple(outages), paused)
