"""Ends a worker's wait when something is due earlier than it was."""

import threading
from collections.abc import Iterable

import redis
import structlog

log = structlog.get_logger("worker")


class Waker:
    """Listens to the wake channels and sets ``event`` on every message.

    Waking is an optimisation. A message can be lost with its connection, so the event is also
    set after each subscription, and whoever waits must look again after a while all the same.
    """

    def __init__(
        self,
        client: redis.Redis,
        channels: Iterable[str],
        event: threading.Event,
        stopping: threading.Event,
    ) -> None:
        self._client = client
        self._channels = tuple(channels)
        self._event = event
        self._stopping = stopping

    def run(self) -> None:
        """Listen until the worker stops."""
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  it may fail in any way, and nothing is lost
                log.debug("wake channel lost", error=str(error))
                self._stopping.wait(1.0)

    def _listen(self) -> None:
        with self._client.pubsub() as pubsub:  # type: ignore[no-untyped-call]  # redis-py's gap
            pubsub.subscribe(*self._channels)
            while not self._stopping.is_set():
                # Returns None after the timeout, having pinged a connection that was silent.
                if pubsub.get_message(timeout=5.0) is not None:
                    self._event.set()
