"""Ends a worker's wait when something is due earlier than before."""

import itertools
import math
import threading
from collections.abc import Callable, Mapping
from random import random
from typing import Any

import redis

from ..errors import described
from ..log import log
from ..queue.advice import redis_advice
from ..queue.environment import Clock

#: Longest wait for a message or the answer to a ping; how soon the thread ends.
LISTEN_SECONDS = 5.0
#: All workers of a queue claim when its next task is due: so many seconds apart, on average. However many there are, they
#: send a thousand claims a second at most.
SHARE_SECONDS = 0.001


class Alarm:
    """Ends a wait, now or at a time that is still to come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: How many other workers wait for the same tasks.
        self.others = 0
        # Reentrant: a signal's handler may set it while its thread is in `wait`.
        self._changed = threading.Condition(threading.RLock())
        self._rings_at = math.inf

    def set(self, in_seconds: float = 0.0) -> None:
        with self._changed:
            self._rings_at = min(self._rings_at, self._clock() + in_seconds)
            self._changed.notify_all()

    def clear(self) -> bool:
        """Return whether it was set, be it for later."""
        with self._changed:
            was_set, self._rings_at = self._rings_at < math.inf, math.inf
        return was_set

    def is_set(self) -> bool:
        return self._rings_at <= self._clock()

    def wait(self, seconds: float) -> None:
        """Wait until it rings, for ``seconds`` at most."""
        until = self._clock() + seconds
        with self._changed:
            while (left := min(until, self._rings_at) - self._clock()) > 0:
                self._changed.wait(left)

    def hear(self, message: bytes) -> None:
        """Set the alarm as a message of the wake channel says: something is due in so many us, or now."""
        self.set(int(message or 0) / 1_000_000 + self.share())

    def share(self, chance: Callable[[], float] = random) -> float:
        """By how many seconds to come later than at the moment that all wait for, so that not all come at once."""
        return SHARE_SECONDS * self.others * chance()


class Waker:
    """Listens to wake channels, and passes every message to the channel's alarm.

    Waking is an optimisation. A message can be lost with its connection, so alarms are also set after each
    subscription, and a waiting thread must still look again after a while.
    """

    def __init__(
        self, client: redis.Redis, alarms: Mapping[str, Alarm], stopping: threading.Event
    ) -> None:
        self._client = client
        self._alarms = {channel.encode(): alarm for channel, alarm in alarms.items()}
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
                    self._alarms[message["channel"]].hear(message["data"])
                else:  # subscribed: earlier messages were missed
                    self._set_all()

    def _set_all(self) -> None:
        for alarm in self._alarms.values():
            alarm.set()
