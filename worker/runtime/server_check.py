"""Whether Redis may delete tasks on its own."""

import redis

from ..errors import UnsafeServer, described
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue


class ServerCheck:
    """Checks the eviction policy of a server once, and again after an outage."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self._checked = False
        self._silence = Reminder(queue.environment.clock)
        #: Whether the server may delete tasks, as far as is known.
        self.unsafe = False

    def check(self) -> None:
        """Raise UnsafeServer if the server may delete tasks. A server that does not answer is checked later."""
        if self._checked:
            return
        try:
            warnings = self._queue.check_server()
        except redis.RedisError as error:
            if self._silence.is_due():
                log.warning("Redis could not be checked yet", error=described(error))
            return
        except UnsafeServer:
            self.unsafe = True
            raise
        self._checked, self.unsafe = True, False
        self._silence.reset()
        for warning in warnings:
            log.warning(warning)

    def forget(self) -> None:
        """Check again next time, because after an outage it may be another server."""
        self._checked = False
