"""The doctor's examination, for the page: a line at a time, as it finds them."""

import threading
from collections.abc import Iterator
from dataclasses import asdict

from orders.bootstrap import Services
from orders.doctor import Doctor
from orders.errors import DoctorBusy
from orders.timeouts import timeout_flow
from orders.webhooks_flow import webhook_flow
from worker import Flow
from worker.doctor import examine

#: What takes longer is reported as hanging.
LIMIT_SECONDS = 5.0


class Examination:
    """One at a time: it is not free."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._flows: list[Flow] = []
        self._running = threading.Lock()

    def run(self) -> Iterator[dict[str, str]]:
        """Each finding as it is made, until `end`. Raises DoctorBusy, at once."""
        if not self._running.acquire(blocking=False):
            raise DoctorBusy
        return self._findings()

    def end(self) -> None:
        """Let the next one begin."""
        self._running.release()

    def _findings(self) -> Iterator[dict[str, str]]:
        redis = self._services.redis
        for found in examine(redis, self._all_flows(), limit_seconds=LIMIT_SECONDS):
            yield {name: str(value) for name, value in asdict(found).items()}

    def _all_flows(self) -> list[Flow]:
        """Made when somebody asks: one of them has a pool of connections to send with."""
        if not self._flows:
            services = self._services
            orders = timeout_flow(services.orders, services.settings, Doctor(services.engine))
            self._flows = [orders, webhook_flow(services)]
        return self._flows
