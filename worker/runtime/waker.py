"""Ends a worker's wait when something is due earlier than before."""

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import redis

from ..errors import described
from ..log import log
from ..queue.advice import redis_advice

#: Longest wait for a message or the answer to a ping; how soon the thread ends.
LISTEN_SECONDS = 5.0


class Waker:
    """Listens to wake channels, and sets a channel's event on every message.

    Waking is an optimisation. A message can be lost with its connection, so events are also set after each
    subscription, and a waiting thread must still look again after a while.
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
            except Exception as error:  # noqa: BLE001  whatever failed, nothing is lost
                if not (self._failing or self._stopping.is_set()):
                    advice = redis_advice(error)
                    more = {"advice": advice} if advice else {}
                    log.warning("wake channel lost", error=described(error), **more)
                    self._set_all()  # waiting threads find out at once whether Redis answers
                self._failing = True
                self._stopping.wait(1.0)

    def _pubsub(self) -> Any:
        # A message published on one node of a cluster reaches all. redis-py would listen on the node of the
        # first channel's slot; while that is down, the other queues would not be woken either.
        client: Any = self._client
        if not hasattr(client, "get_nodes"):
            return client.pubsub()
        nodes = client.get_nodes()
        return client.pubsub(node=nodes[next(self._turns) % len(nodes)])

    def _listen(self) -> None:
        with self._pubsub() as pubsub:
            pubsub.subscribe(*self._alarms)
            while not self._stopping.is_set():
                # Returns None after the timeout, and pings a connection that was silent.
                message = pubsub.get_message(timeout=LISTEN_SECONDS)
                if message is None:
                    # redis-py counts unanswered pings, but would wait forever.
                    if pubsub.health_check_response_counter:
                        raise redis.TimeoutError("no answer to a ping")
                    continue
                self._failing = False
                if message["type"] == "message":
                    self._alarms[message["channel"]].set()
                else:  # subscribed: earlier messages were missed
                    self._set_all()

    def _set_all(self) -> None:
        for event in self._alarms.values():
            event.set()
