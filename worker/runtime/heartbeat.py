"""Records in each queue that this worker is alive and what it holds, and watches for calls that hang."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import redis

from ..errors import described
from ..log import log
from .outages import HangDetector
from .station import Station
from .tally import Tally

#: Time between two heartbeats. With these, slow polls and the sweep, an idle worker sends less than one
#: command every two seconds for each of its queues.
BEAT_SECONDS = 20.0
#: Time between two heartbeats while tasks are handled, so that `stats --watch` stays current. Claims cost far more.
BUSY_BEAT_SECONDS = 2.0
#: How many ids of the tasks that a worker holds are listed.
LISTED = 10


def new_worker_id() -> str:
    """A unique id that shows the host and the process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Heartbeat:
    """Sends heartbeats for each queue of a worker."""

    def __init__(
        self,
        worker_id: str,
        stations: Sequence[Station],
        watched: Sequence[HangDetector],
        stopping: threading.Event,
        tally: Tally,
    ) -> None:
        self._worker_id = worker_id
        self._stations = stations
        self._watched = watched
        self._stopping = stopping
        self._tally = tally
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self) -> None:
        """Send heartbeats and watch for hanging calls until the worker stops, then sign off."""
        beat_at, busy_beat_at = 0.0, 0.0
        sent_up, sent = [False for _ in self._stations], self._handled()
        while True:
            now = time.monotonic()
            for detector in self._watched:
                detector.report(now)
            up = [station.health.up for station in self._stations]
            is_busy = now >= busy_beat_at and self._handled() != sent
            if now >= beat_at or is_busy or up != sent_up:  # a flow that goes down shows at once
                beat_at, busy_beat_at = now + BEAT_SECONDS, now + BUSY_BEAT_SECONDS
                sent_up, sent = up, self._handled()
                for station in self._stations:
                    self._beat(station, now)
            if self._stopping.wait(1.0):
                break
        for station in self._stations:
            try:
                station.queue.sign_off(self._worker_id)
            except redis.RedisError as error:  # the entry expires anyway
                log.debug("not signed off", queue=station.queue.name, error=described(error))
                return

    def _handled(self) -> list[object]:
        return [self._tally.of(station.queue.name) for station in self._stations]

    def _beat(self, station: Station, now: float) -> None:
        try:
            station.queue.beat(self._worker_id, self._details(station, now))
        except redis.RedisError as error:
            log.debug("no heartbeat", queue=station.queue.name, error=described(error))

    def _details(self, station: Station, now: float) -> dict[str, Any]:
        held = station.renewer.held()
        tasks = [task for each in held for task in each.tasks()]
        lateness = self._tally.of(station.queue.name)
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "up": station.health.up,
            "holds": len(tasks),
            "held": [task.id for task in tasks[:LISTED]],
            "oldest_seconds": max((round(now - each.began_at, 1) for each in held), default=0.0),
            "handled": sum(tasks for _, tasks in lateness),
            "lateness": lateness,
        }
