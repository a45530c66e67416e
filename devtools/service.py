"""The whole service on this machine: Valkey, PostgreSQL, the API and a worker, as real processes."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self
from urllib.request import urlopen

from devtools import processes
from devtools.postgres import Postgres
from devtools.processes import Process, log_end, wait_until
from devtools.valkey import Valkey


class Service:
    """A context manager: entering starts the processes, leaving stops them, the databases last."""

    def __init__(
        self,
        folder: Path,
        port: int,
        settings: Mapping[str, str] | None = None,
        *,
        postgres: Postgres | None = None,
    ) -> None:
        """``postgres`` keeps its data; None is a server whose data is deleted at the end."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._keeps_data = postgres is not None
        self.postgres = postgres or Postgres()
        self.base_url = f"http://127.0.0.1:{port}"
        self.valkey = Valkey(folder / "valkey", "--appendonly", "yes")
        self.env = {
            "DATABASE_URL": self.postgres.url(),
            "REDIS_URL": self.valkey.url,
            **(settings or {}),
        }
        self._port = port
        self._started: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                raise RuntimeError(f"port {self._port} is taken: make run PORT={self._port + 1}")
        try:
            self._started.append(self.postgres.stop if self._keeps_data else self.postgres.remove)
            self.postgres.start()
            self._started.append(self.valkey.stop)
            self.valkey.start()
            processes.migrate(self.env)
            self.worker = self.start_worker()
            self.api = processes.api(self.env, self._port, self.folder / "api.log")
            self._started.append(self.api.stop)
            wait_until(self._ready, "the API to be ready", ignoring=OSError)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_worker(self) -> Process:
        """Start another worker."""
        worker = processes.worker(self.env, self.folder / "worker.log")
        self._started.append(worker.stop)
        return worker

    def stop(self) -> None:
        """Stop what was started, in reverse order."""
        while self._started:
            self._started.pop()()

    def running(self) -> bool:
        """Whether the worker and the API are still running."""
        return self.worker.running() and self.api.running()

    def _ready(self) -> bool:
        if not self.api.running():
            raise RuntimeError(f"the API did not start:\n{log_end(self.api.log)}")
        with urlopen(f"{self.base_url}/readyz", timeout=1) as response:  # noqa: S310  our own URL
            return bool(response.status == 200)
