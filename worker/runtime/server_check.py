"""Whether Redis may delete tasks on its own."""

from ..errors import UnsafeServer
from ..log import log
from ..queue.delay_queue import DelayQueue


class ServerCheck:
    """Checks the eviction policy of a server once, and again after an outage."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self._checked = False
        #: Whether the server may delete tasks, as far as is known.
        self.unsafe = False

    def check(self) -> None:
        """Raise UnsafeServer if the server may delete tasks, and redis.RedisError if it does not answer."""
        if self._checked:
            return
        try:
            warnings = self._queue.check_server()
        except UnsafeServer:
            self.unsafe = True
            raise
        self._checked, self.unsafe = True, False
        for warning in warnings:
            log.warning(warning)

    def forget(self) -> None:
        """Check again next time, because after an outage it may be another server."""
        self._checked = False
