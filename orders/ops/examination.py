"""The doctor's examination for the page: each finding as soon as it is made."""

import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property

from orders.bootstrap import Services
from orders.errors import DoctorBusy
from orders.timeouts import flows
from worker import Flow
from worker.doctor import examine

#: A check that takes longer is reported as hanging.
LIMIT_SECONDS = 5.0


class Examination:
    """One at a time in each process, because it puts load on SQL and Redis."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._running = threading.Lock()

    def run(self) -> Iterator[dict[str, str]]:
        """Each finding as it is made. The caller must call `end`. Raises DoctorBusy at once."""
        if not self._running.acquire(blocking=False):
            raise DoctorBusy
        return self._findings()

    def end(self) -> None:
        """Let the next examination begin."""
        self._running.release()

    def _findings(self) -> Iterator[dict[str, str]]:
        redis = self._services.redis
        for found in examine(redis, self._flows, limit_seconds=LIMIT_SECONDS):
            yield {name: str(value) for name, value in asdict(found).items()}

    @cached_property
    def _flows(self) -> list[Flow]:
        """Built on first use, because it loads TLS certificates."""
        return flows(self._services)
