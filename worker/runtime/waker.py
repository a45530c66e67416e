"""Ends a worker's wait when something is due earlier than before."""

import itertools
import math
import threading
from collections.abc import Mapping
from typing import Any

import redis

from ..errors import described
from ..log import log
from ..queue.advice import redis_advice
from ..queue.environment import Clock

#: Longest wait for a message or the answer to a ping; how soon the thread ends.
LISTEN_SECONDS = 5.0
#: How far apart the turns are of 30 workers or more that claim several tasks at once; others' are closer.
TURN_SECONDS, MANY = 0.005, 30
#: How far if each claims one at a time, so that tasks that are due together need many claims.
ALONE_SECONDS = 0.001
#: If what comes is later than this, those whose turn it was are probably busy, or dead.
LATE_SECONDS = 2 * TURN_SECONDS


class Turns:
    """When this worker claims what all idle workers of its queue wait for: one after the other, again and again.

    Who finds a task takes it; the others find that it is gone. So a few claims for each task are enough, however many wait.
    """

    def __init__(self) -> None:
        #: This worker's place among how many.
        self.place, self.workers = 0, 1
        #: How many tasks it claims at once.
        self.limit = 1
        #: The server's clock minus this process's, seconds: turns are moments of the server's.
        self.server_ahead = 0.0
        #: The part of a round that is waited for between two turns: less than all of it while others miss theirs.
        self._share = 1.0

    def seconds_to_next(self, moment: float) -> float:
        """From a moment on this process's clock, which may be a turn itself."""
        if self.workers == 1:
            return 0.0
        apart = ALONE_SECONDS if self.limit == 1 else TURN_SECONDS
        apart *= self._share * min(1, self.workers / MANY)
        return (self.place * apart - moment - self.server_ahead) % (self.workers * apart)

    def learn(self, late_seconds: float) -> None:
        """Come more often if what a claim found was late, less often again if it found nothing, which is 0."""
        if late_seconds > LATE_SECONDS:
            self._share = max(self._share * LATE_SECONDS / late_seconds, 1 / self.workers)
        elif late_seconds == 0:
            self._share = min(self._share * 1.1, 1.0)


class Alarm:
    """Ends a wait, now or at a time that is still to come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.turns = Turns()
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
        self.set(self.turn_in(int(message or 0) / 1_000_000))

    def turn_in(self, seconds: float) -> float:
        """In how many seconds this worker's turn is for what is due in so many."""
        return seconds + self.turns.seconds_to_next(self._clock() + seconds)


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
        self._tries = itertools.count()

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
        return client.pubsub(node=nodes[next(self._tries) % len(nodes)])

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
