"""Ends a worker's wait when something is due earlier than it was."""

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import redis
import structlog

from .advice import redis_advice
from .errors import described

log = structlog.get_logger("worker")

#: Longest wait for a message or the answer to a ping; how soon the thread ends.
LISTEN_SECONDS = 5.0


class Waker:
    """Listens to wake channels, and sets the event of each on every message.

    Waking is an optimisation. A message can be lost with its connection, so events are also
    set after each subscription, and whoever waits must look again after a while all the same.
    """

    def __init__(
        self, client: redis.Redis, alarms: Mapping[str, threading.Event], stopping: threading.Event
    ) -> None:
        self._client = client
        self._alarms = {channel.encode(): event for channel, event in alarms.items()}
        self._stopping = stopping
        self._failing = False
        self._turns = itertools.count()

    def run(self) -> None:
        """Listen until the worker stops."""
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  it may fail in any way, and nothing is lost
                if not (self._failing or self._stopping.is_set()):
                    advice = redis_advice(error)
                    more = {"advice": advice} if advice else {}
                    log.warning("wake channel lost", error=described(error), **more)
                    self._set_all()  # whoever waits finds out now whether Redis is there
                self._failing = True
                self._stopping.wait(1.0)

    def _pubsub(self) -> Any:
        # What is published on one node of a cluster is heard on all. redis-py would listen on that of
        # the first channel's slot, and while it is down, no other queue would be woken either.
        client: Any = self._client
        if not hasattr(client, "get_nodes"):
            return client.pubsub()
        nodes = client.get_nodes()
        return client.pubsub(node=nodes[next(self._turns) % len(nodes)])

    def _listen(self) -> None:
        with self._pubsub() as pubsub:
            pubsub.subscribe(*self._alarms)
            while not self._stopping.is_set():
                # Returns None after the timeout, having pinged a connection that was silent.
                message = pubsub.get_message(timeout=LISTEN_SECONDS)
                if message is None:
                    # redis-py counts the pings that were not answered, and would wait forever.
                    if pubsub.health_check_response_counter:
                        raise redis.TimeoutError("no answer to a ping")
                    continue
                self._failing = False
                if message["type"] == "message":
                    self._alarms[message["channel"]].set()
                else:  # subscribed: what came before was not heard
                    self._set_all()

    def _set_all(self) -> None:
        for event in self._alarms.values():
            event.set()
