"""Runs a peer's worker as its users start it, and measures it from outside."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.scene import Scene, cpu_seconds
from devtools.processes import ROOT, Process, wait_until

#: Tasks are scheduled this long before the first is due, plus what scheduling each may take.
LEAD_MS = 3000
SCHEDULE_MS = 3
#: Tasks that a worker handles before its lateness counts.
WARM_UP = 20

#: Seconds from the first to the last tenth of the orders that were cancelled.
MIDDLE = (
    "SELECT extract(epoch FROM percentile_disc(0.9) WITHIN GROUP (ORDER BY at) "
    "- percentile_disc(0.1) WITHIN GROUP (ORDER BY at)) "
    "FROM order_events WHERE type = 'order.cancelled'"
)


@dataclass(frozen=True)
class Peer:
    """A task queue, and how its users start its worker."""

    module: str  # in this package
    worker: str  # the arguments of python -m, or of ``command``
    command: Path | None = None
    processes: int = 1
    env: Mapping[str, str] = field(default_factory=dict)


def drain(peer: Peer, stage: Scene, ids: Sequence[str]) -> float:
    """Orders per second, paid ones included, when a worker finds them all due.

    Only the middle 80% count, which leaves out a peer's start and end. The tasks are enqueued to run
    at once, which leaves out its scheduler.
    """
    env = _prepare(peer, stage, {})
    _produce(peer, env, "enqueue", ids)
    with _workers(peer, env, stage.folder) as workers:
        unpaid = "FROM unpaid_orders"
        _wait(workers, lambda: stage.count(unpaid) == 0, seconds=600)
    stage.assert_drained()
    with psycopg.connect(stage.dsn) as connection:
        [seconds] = connection.execute(MIDDLE).fetchone() or [0]
    return 0.8 * len(ids) / float(seconds)


def lateness(peer: Peer, stage: Scene, rate: int, seconds: float) -> tuple[list[float], float]:
    """By how many milliseconds each task starts late, or early when below zero; and the workers' share of one core.

    The tasks are due at ``rate`` per second for ``seconds``, and do nothing. All are scheduled
    before the first is due, while a worker is running that has already handled others.
    """
    notes = stage.folder / "notes.txt"
    notes.write_text("")
    env = _prepare(peer, stage, {"NOTES": str(notes)})
    count = round(rate * seconds)
    with _workers(peer, env, stage.folder) as workers:
        _produce(peer, env, "schedule", [_now_ms() + LEAD_MS] * WARM_UP)
        _wait(workers, lambda: len(_noted(notes)) >= WARM_UP, seconds=60)
        first_ms = _now_ms() + LEAD_MS + count * SCHEDULE_MS
        _produce(peer, env, "schedule", [first_ms + 1000 * n / rate for n in range(count)])
        assert _now_ms() < first_ms, f"{peer.module} takes too long to schedule {count} tasks"
        time.sleep(max(0.0, first_ms - _now_ms()) / 1000)
        start, cpu = time.perf_counter(), _cpu_seconds(workers)
        _wait(workers, lambda: len(_noted(notes)) >= WARM_UP + count, seconds=seconds + 120)
        cpu_percent = 100 * (_cpu_seconds(workers) - cpu) / (time.perf_counter() - start)
    return _noted(notes)[WARM_UP:], cpu_percent


def _cpu_seconds(workers: Sequence[Process]) -> float:
    return sum(cpu_seconds(worker.pid) for worker in workers)


def _noted(notes: Path) -> list[float]:
    return [float(line) for line in notes.read_text().splitlines()]


def _now_ms() -> float:
    return time.time() * 1000


def _prepare(peer: Peer, stage: Scene, env: Mapping[str, str]) -> dict[str, str]:
    """Empty Valkey and the peer's tables. Returns the environment of the peer's processes."""
    stage.client().flushall()
    env = {"REDIS_URL": stage.redis_url, "DATABASE_URL": stage.dsn, **env, **peer.env}
    _produce(peer, env, "prepare", [])
    return env


def _produce(
    peer: Peer, env: Mapping[str, str], action: str, tasks: Sequence[str] | Sequence[float]
) -> None:
    """Pass tasks to a peer, from a separate process."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.produce", peer.module, action],
        input="\n".join(map(str, tasks)),
        cwd=ROOT,
        env={**os.environ, **env},
        text=True,
        check=True,
    )


@contextlib.contextmanager
def _workers(peer: Peer, env: Mapping[str, str], folder: Path) -> Iterator[list[Process]]:
    """Start a peer's workers; kill them and their children at the end."""
    log = folder / f"{peer.module}.log"
    command = [str(peer.command)] if peer.command else [sys.executable, "-m"]
    workers = [Process([*command, *peer.worker.split()], log, env) for _ in range(peer.processes)]
    try:
        yield workers
    except Exception as error:
        error.add_note(log.read_text())
        raise
    finally:
        for worker in workers:
            worker.kill()


def _wait(workers: list[Process], condition: Callable[[], bool], *, seconds: float) -> None:
    """Wait, polling rarely enough not to disturb the measurement."""

    def done() -> bool:
        if not all(worker.running() for worker in workers):
            raise RuntimeError(f"{workers[0].command} has ended")
        return condition()

    wait_until(done, f"{workers[0].command} to finish", seconds=seconds, every=0.25)
