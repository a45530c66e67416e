"""Task queues that an application might use instead, doing the same work, one order at a time.

Each is started as its users start it, with the settings that were fastest for this work on two cores
among those that lose no task when a worker crashes.
"""

import shutil
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.peers import graphile_worker
from benchmarks.peers.measure import Peer, drain, lateness
from benchmarks.scene import Scene

PEERS = {
    "a polled sorted set": Peer("polled_zset", "benchmarks.peers.polled_zset"),
    # Two workers with threads, because one can use only one core; processes were slower here. The
    # workers' messages to each other are turned off.
    "Celery": Peer(
        "celery",
        "celery --app benchmarks.peers.celery worker --pool threads --concurrency 4 "
        "--without-gossip --without-mingle --without-heartbeat --loglevel WARNING",
        processes=2,
    ),
    # Its defaults on two cores, except that it polls for due tasks every 0.1 s, not every second.
    "Dramatiq": Peer(
        "dramatiq",
        "dramatiq benchmarks.peers.dramatiq --processes 2 --threads 8",
        env={"dramatiq_worker_timeout": "100"},
    ),
    # Workers that do not fork for each task, as its guide suggests for tasks that take milliseconds,
    # one for each core. Its scheduler polls every second, and cannot poll more often.
    "RQ": Peer(
        "rq",
        "rq.cli worker-pool --num-workers 2 --worker-class rq.SimpleWorker --serializer json "
        "--logging-level WARNING",
    ),
    "PgQueuer": Peer("pgqueuer", "benchmarks.peers.pgqueuer", processes=2),
}
if shutil.which("node"):
    PEERS["Graphile Worker"] = Peer(
        "graphile_worker",
        f"--config {graphile_worker.FOLDER}/graphile.config.js",
        command=graphile_worker.COMMAND,
        processes=2,
    )

#: Measures how many orders per second each processes.
DRAINS: dict[str, Callable[[Scene, Sequence[str]], float]] = {
    name: partial(drain, peer) for name, peer in PEERS.items()
}
#: Measures by how many milliseconds each task is late, given tasks per second and seconds, and the workers' share of a core.
LATENESS: dict[str, Callable[[Scene, int, float], tuple[list[float], float]]] = {
    name: partial(lateness, peer) for name, peer in PEERS.items()
}
