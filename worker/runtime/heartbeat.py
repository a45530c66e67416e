"""Records in each queue that this worker is alive and what it holds, and watches for calls that hang."""

import math
import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import redis

from ..errors import described
from ..log import log
from .hangs import HangDetector
from .station import Station

#: Time between two heartbeats. With these an idle worker sends less than a command in two seconds for each queue.
BEAT_SECONDS = 20.0
#: How many ids of the tasks that a worker holds are listed.
LISTED = 10


def new_worker_id(token: Callable[[int], str]) -> str:
    """A unique id that shows the host and the process."""
    return f"{socket.gethostname()}:{os.getpid()}:{token(3)}"


class Heartbeat:
    """Sends heartbeats for each queue of a worker."""

    def __init__(
        self,
        worker_id: str,
        stations: Sequence[Station],
        watched: Sequence[HangDetector],
        stopping: threading.Event,
    ) -> None:
        self._worker_id = worker_id
        self._stations = stations
        self._watched = watched
        self._stopping = stopping
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self) -> None:
        """Send heartbeats and watch for hanging calls until the worker stops, then sign off."""
        clock = self._stations[0].queue.environment.clock
        # When each queue's last one was sent, and whether its flow was up.
        last: dict[str, tuple[float, bool]] = {}
        while True:
            now = clock()
            for detector in self._watched:
                detector.report(now)
            for station in self._stations:
                name, up = station.queue.name, not station.gate.down
                sent_at, was_up = last.get(name, (-math.inf, up))
                # One that goes down shows at once.
                if up != was_up or now - sent_at >= BEAT_SECONDS:
                    last[name] = now, up
                    self._beat(station, now)
            if self._stopping.wait(1.0):
                break
        for station in self._stations:
            try:
                station.queue.sign_off(self._worker_id)
            except redis.RedisError as error:  # the entry expires anyway
                log.debug("not signed off", queue=station.queue.name, error=described(error))
                return

    def _beat(self, station: Station, now: float) -> None:
        try:
            place = station.queue.beat(self._worker_id, self._details(station, now))
        except redis.RedisError as error:
            log.debug("no heartbeat", queue=station.queue.name, error=described(error))
        else:
            station.place = place

    def _details(self, station: Station, now: float) -> dict[str, Any]:
        held = station.renewer.held()
        tasks = [task for each in held for task in each.tasks()]
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "up": not station.gate.down,
            "holds": len(tasks),
            "held": [task.id for task in tasks[:LISTED]],
            "leases": sorted({task.token[:12] for task in tasks}),
            "oldest_seconds": max((round(now - each.began_at, 1) for each in held), default=0.0),
        }
