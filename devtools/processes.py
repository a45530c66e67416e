"""Real processes on this machine: a server or a command, started, watched and stopped."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: The log of every process that was started here. When a test fails, the ends of these are shown.
LOGS: set[Path] = set()
#: Below the range that systems choose outgoing ports from: a client that happens to get the port of
#: a stopped server keeps it from starting again, or even connects to itself.
PORTS = range(10_000, 32_000)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Code(NamedTuple):
    """What a command runs: a checkout, and the interpreter that has what it needs."""

    folder: Path = ROOT
    python: str = sys.executable


OURS = Code()


class Guard:
    """Ends a session of processes if this process ends without having done so, even by kill -9."""

    #: Those that are not released: each goes on even if its process is forgotten.
    _on_duty: ClassVar[set["Guard"]] = set()

    def __init__(self, session: int, number: signal.Signals) -> None:
        self._on_duty.add(self)
        reader, self._writer = os.pipe()
        # It reads until the pipe's other end is closed, which the system does for a dead process.
        script = 'read -r _ || kill -s "$0" -- "-$1"'
        self._child = subprocess.Popen(
            ["/bin/sh", "-c", script, number.name.removeprefix("SIG"), str(session)],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reader)

    def release(self) -> None:
        """The processes have ended: their id may soon be another's."""
        if self._child.returncode is None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._writer, b"\n")
            os.close(self._writer)
            self._child.wait()
            self._on_duty.discard(self)


class Process:
    """A child process in a session of its own, so that Ctrl-C reaches only its parent."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        cwd: Path = ROOT,
    ) -> None:
        self.command = command
        self.log = log
        LOGS.add(log)
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._child.pid
        self._guard = Guard(self.pid, signal.SIGKILL)

    def running(self) -> bool:
        return self._child.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended: another may have its id by now."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """Kill -9 the process and all of its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()
        self._guard.release()

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM, then wait; kill -9 after ``seconds``. Returns the exit status."""
        self._child.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for the end; kill -9 after ``seconds``. Returns the exit status."""
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._guard.release()
        return self._child.wait()


#: One process with eight threads; timeouts and connections are limited as in docker-compose.yml.
GRANIAN = ["--interface", "wsgi", "--workers", "1", "--blocking-threads", "8", "--no-ws"]
GRANIAN += ["--http", "1", "--http1-header-read-timeout", "5000", "--backpressure", "256"]


def api(
    env: Mapping[str, str],
    port: int,
    log: Path,
    app: str = "orders.app:create_app",
    code: Code = OURS,
) -> Process:
    """The HTTP API under granian, or another application."""
    return python(["granian", *GRANIAN, "--factory", "--port", str(port), app], env, log, code)


def worker(env: Mapping[str, str], log: Path, *options: str) -> Process:
    """A worker process that runs the orders' flows."""
    return python(["worker", "run", "orders.timeouts:flows", *options], env, log)


def python(module: list[str], env: Mapping[str, str], log: Path, code: Code = OURS) -> Process:
    """``python -m module``, in the background."""
    return Process([code.python, "-m", *module], log, env, cwd=code.folder)


def migrate(env: Mapping[str, str]) -> None:
    """Bring the database to the current schema."""
    run(["alembic", "upgrade", "head"], env)


def run(module: list[str], env: Mapping[str, str], code: Code = OURS) -> str:
    """Run ``python -m module`` to its end; return its output. Raises RuntimeError on failure."""
    done = subprocess.run(
        [code.python, "-m", *module],
        cwd=code.folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(module)}: {done.stderr or done.stdout}")
    return done.stdout


#: The sockets that reserve the ports returned last. Bare descriptors, so that Python does not warn
#: about unclosed sockets when this process ends.
_reservations: deque[int] = deque()


def free_port() -> int:
    """A port that nobody listens on, reserved for this process.

    Otherwise two test processes could get the same port before either has started a server on it.
    The reservation is the UDP port of the same number: nothing here uses UDP, and the system frees
    the port however this process ends. Raises OSError if no port is free.
    """
    for _ in range(1000):
        port = secrets.choice(PORTS)
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            reservation.close()
            continue
        _reservations.append(reservation.detach())
        if len(_reservations) > 100:  # the oldest port's server has started by now, or is gone
            os.close(_reservations.popleft())
        return port
    raise OSError("no port of this machine is free")


def interrupt_on_signals() -> None:
    """Have Ctrl-C and SIGTERM raise KeyboardInterrupt, and only the first of them."""
    for number in SIGNALS:  # background jobs of a shell ignore SIGINT
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the stopping
    raise KeyboardInterrupt


def log_end(log: Path) -> str:
    """The last 30 lines of a log."""
    if not log.exists():
        return f"{log} does not exist"
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def events(log: Path) -> list[dict[str, Any]]:
    """The events that one of our processes has logged so far. Other lines are not JSON."""
    whole, _, _ = log.read_text(errors="replace").rpartition("\n")
    return [json.loads(line) for line in whole.split("\n") if line.startswith("{")]


class Tail:
    """Follows the log of one of our processes from now on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = log.stat().st_size if log.exists() else 0

    def events(self) -> Iterator[dict[str, Any]]:
        """The events since the last call."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.splitlines():
            # Other programs may write to this file, too.
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    yield event


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    seconds: float = 60.0,
    every: float = 0.005,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Wait until ``condition`` is true; it is checked again after ``every`` seconds.

    Raises TimeoutError after ``seconds``, with the last error that it ignored. The default only ends a
    hang: it is long enough for the busiest machine.
    """
    deadline, last = time.monotonic() + seconds, ""
    while True:
        try:
            if condition():
                return
        except ignoring as error:
            last = f"; the last time: {error}"
        else:
            last = ""
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}{last}")
        time.sleep(every)
