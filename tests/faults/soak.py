"""A random nemesis against a whole installation under load, checked throughout.

    python -m tests.faults.soak [--minutes 10] [--seed N] [--customers 24]

PostgreSQL, Valkey behind a proxy, three workers, two API processes, and customers who order and
pay over HTTP. Every few seconds something is killed, frozen, flushed, cut off or restarted. The
checker reads the whole history meanwhile. Then everything is healed, everything must finish, and
one table is printed. Exits with 1 when a promise was broken, or something did not finish.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import redis
import sqlalchemy as sa

from devtools.postgres import Postgres
from devtools.processes import Process, free_port, wait_until
from orders.db.tables import order_events
from orders.queues import QUEUE
from tests.kit.checker import History, Violation, read, violations
from tests.kit.features import brought
from tests.kit.load import Load
from tests.kit.proxy import Mode, Proxy
from tests.kit.shop import client_id
from tests.kit.site import ON_HAND, SKUS, Site
from tests.kit.states import states, status
from worker import DelayQueue, connect

LEASE_SECONDS = 3
SETTINGS = {
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "STATEMENT_TIMEOUT_SECONDS": "2",
    "LOCK_TIMEOUT_SECONDS": "1",
    "MAX_FAILURES": "3",
    "RETRY_BASE_SECONDS": "0.1",
    "RETRY_CAP_SECONDS": "0.5",
    "WEBHOOK_ALLOW_PRIVATE": "1",  # <webhooks/>
}
WORKERS = 3
#: How long after a fault its effects may still show: a lease, and the time to notice.
AFTERMATH_SECONDS = LEASE_SECONDS + 1
STOCKED = dict.fromkeys(SKUS, ON_HAND)
REFUNDS = ("payment.refund_due", "payment.refunded")


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int, customers: int) -> None:
        self.chance = random.Random(seed)
        self.closing = ExitStack()
        self.postgres = Postgres().start()
        self.closing.callback(self.postgres.remove)
        self.postgres.execute("CREATE DATABASE soak")
        self.site = Site(folder, self.postgres.url("soak"), SETTINGS)
        self.site.flows = "orders.timeouts:flows"
        self.proxy = Proxy(self.site.valkey.port)
        self.closing.callback(self.proxy.close)
        #: What processes get instead of the site's own settings.
        self.through = {"REDIS_URL": f"redis://127.0.0.1:{self.proxy.port}/0"}
        self.closing.callback(self.site.close)
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.ports = [free_port(), free_port()]
        self.apis = [self.site.start_api(port, **self.through) for port in self.ports]
        key = self.site.services.clients.create_key("soak", ["orders", "payments"])
        client = client_id(self.site.services.clients, key)
        self.watches = [each.Watch(self.site, client) for each in brought("promises")]
        urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.load = Load(urls, key, SKUS, customers=customers, seed=seed)
        self.faults: Counter[str] = Counter()
        #: A fault, when it began and when its effects ended, seconds since the epoch.
        self.windows: list[tuple[str, float, float]] = []
        self.found: list[Violation] = []
        self.checks = 0
        self.nemesis = [
            self.worker_killed,
            self.worker_frozen,
            self.worker_terminated,
            self.api_killed,
            self.redis_killed,
            self.redis_flushed,
            self.redis_frozen,
            self.network_cut,
            self.network_stalled,
            self.answers_swallowed,
            self.connections_reset,
            self.network_slow,
            self.sql_restarted,
            self.sql_down,
            self.backend_frozen,
            self.backends_terminated,
        ]

    def close(self) -> None:
        for each in self.watches:
            each.close()
        self.closing.close()

    # -- the nemesis -----------------------------------------------------------------------

    def torment(self, seconds: float) -> None:
        """One random fault after another, the history checked in between."""
        end = time.monotonic() + seconds
        deck: list[Callable[[], None]] = []
        while time.monotonic() < end:
            if not deck:  # every fault once before any comes again
                deck = self.chance.sample(self.nemesis, len(self.nemesis))
            fault = deck.pop()
            start = time.time()
            fault()
            name = fault.__name__.replace("_", " ")
            self.faults[name] += 1
            self.windows.append((name, start, time.time() + AFTERMATH_SECONDS))
            self.pause(1, 9)
            self.check()

    def pause(self, least: float, most: float) -> None:
        time.sleep(self.chance.uniform(least, most))

    def worker_killed(self) -> None:
        self._replace_worker(Process.kill)

    def worker_terminated(self) -> None:
        self._replace_worker(lambda worker: worker.stop())

    def worker_frozen(self) -> None:
        worker = self.chance.choice(self.workers)
        worker.signal(signal.SIGSTOP)
        self.pause(LEASE_SECONDS, 2 * LEASE_SECONDS)
        worker.signal(signal.SIGCONT)

    def api_killed(self) -> None:
        n = self.chance.randrange(len(self.apis))
        self.apis[n].kill()
        self.apis[n] = self.site.start_api(self.ports[n], **self.through)

    def redis_killed(self) -> None:
        self.site.valkey.kill()
        self.pause(0.5, 4)
        self.site.valkey.start()

    def redis_flushed(self) -> None:
        with redis.Redis.from_url(self.site.valkey.url) as client:
            client.flushall()

    def redis_frozen(self) -> None:
        assert self.site.valkey.process is not None
        self.site.valkey.process.signal(signal.SIGSTOP)
        self.pause(0.5, 4)
        self.site.valkey.process.signal(signal.SIGCONT)

    def network_cut(self) -> None:
        self.proxy.cut()
        self.pause(0.5, 4)
        self.proxy.heal()

    def network_stalled(self) -> None:
        self.proxy.mode = Mode.STALL
        self.pause(0.5, 4)
        self.proxy.heal()

    def answers_swallowed(self) -> None:
        self.proxy.mode = Mode.STALL_ANSWERS
        self.pause(0.5, 4)
        self.proxy.heal()

    def connections_reset(self) -> None:
        self.proxy.reset()

    def network_slow(self) -> None:
        self.proxy.delay_seconds = 0.25
        self.pause(1, 4)
        self.proxy.heal()

    def sql_restarted(self) -> None:
        self.postgres.kill()
        self.postgres.start()

    def sql_down(self) -> None:
        self.postgres.stop()
        self.pause(1, 5)
        self.postgres.start()

    def backend_frozen(self) -> None:
        pids = self._backends()
        if pids:
            pid = self.chance.choice(pids)
            signalled(pid, signal.SIGSTOP)
            self.pause(1, 4)
            signalled(pid, signal.SIGCONT)

    def backends_terminated(self) -> None:
        self.postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'soak'"
        )

    def _backends(self) -> list[int]:
        with psycopg.connect(self.postgres.url("soak").replace("+psycopg", "")) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity "
                "WHERE application_name = 'order-timeout' AND datname = 'soak'"
            ).fetchall()
        return [row[0] for row in rows]

    def _worker(self) -> Process:
        return self.site.start_worker(ready=False, **self.through)

    def _replace_worker(self, end: Callable[[Process], object]) -> None:
        worker = self.chance.choice(self.workers)
        end(worker)
        self.workers.remove(worker)
        self.workers.append(self._worker())

    # -- checking --------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that must hold at every moment. A part that is down is left out."""
        with suppress(sa.exc.DBAPIError, redis.RedisError):
            self.found += violations(self.history(), stocked=STOCKED)
            self.checks += 1

    def history(self) -> History:
        with connect(self.site.env["REDIS_URL"], timeout_seconds=5) as client:
            queue = DelayQueue(client, QUEUE)
            return read(self.site.services.engine, queue, [*self.load.responses])

    def finish(self) -> None:
        """After healing, everything must finish; then nothing may be left or missing."""
        self.load.stop()
        # A pooler may need a while to connect.
        wait_until(lambda: self.site.unpaid() == 0, "orders to end", ignoring=sa.exc.DBAPIError)
        wait_until(self._queue_is_empty, "every check to be settled", seconds=60)
        for each in self.watches:
            while left := each.left():
                wait_until(lambda: each.left() < left, "more to be sent", every=0.5)  # noqa: B023
        history = self.history()
        self.found += [lost for each in self.watches for lost in each.violations(history)]
        self.found += violations(history, stocked=STOCKED, drained=True, complete=True)

    def _queue_is_empty(self) -> bool:
        stats = self.site.queue.stats()
        return stats.scheduled == stats.leased == 0

    # -- the table -------------------------------------------------------------------------

    def table(self, seconds: float) -> str:
        with self.site.services.engine.connect() as connection:
            rows = connection.execute(
                sa.select(status, states.c.reason, states.c.expires_at, states.c.ended_at)
            ).all()
            events = connection.execute(sa.select(order_events.c.type)).scalars().all()
        late_ms: dict[str, list[float]] = {"SQL failed": [], "another part failed": [], "": []}
        for row in rows:
            if row.reason == "expired":
                due, ended = row.expires_at.timestamp(), row.ended_at.timestamp()
                late_ms[self._failing(due, ended)].append(1000 * (ended - due))
        statuses = Counter(row.status for row in rows)
        kinds = Counter(events)
        lines = [
            ("duration", f"{seconds / 60:.1f} minutes"),
            ("orders", f"{len(rows):,}"),
            ("paid, cancelled", f"{statuses['paid']:,}, {statuses['cancelled']:,}"),
            ("deadlines moved", f"{kinds['order.extended']:,}"),
            ("refunds due, refunded", ", ".join(f"{kinds[kind]:,}" for kind in REFUNDS)),
            ("answers to customers", f"{len(self.load.responses):,}"),
            *(line for each in self.watches for line in each.lines()),
            ("faults", f"{sum(self.faults.values()):,}"),
            *((f"- {name}", f"{count}") for name, count in sorted(self.faults.items())),
            ("checks of the whole history", f"{self.checks:,}"),
            ("violations", f"{len(self.found):,}"),
            *(
                (f"late while {what}, ms" if what else "late otherwise, ms", percentiles(values))
                for what, values in late_ms.items()
            ),
        ]
        return "\n".join(
            f"| {name} | {value} |" for name, value in [("", ""), ("---", "---"), *lines]
        )

    def _failing(self, due: float, ended: float) -> str:
        """What was failing, or still felt, while an order was due and not yet cancelled."""
        struck = [name for name, start, end in self.windows if start <= ended and due <= end]
        if any(name.startswith(("sql", "backend")) for name in struck):
            return "SQL failed"
        return "another part failed" if struck else ""


def percentiles(late_ms: list[float]) -> str:
    """p50, p99 and the maximum."""
    if len(late_ms) < 2:
        return "-"
    cuts = statistics.quantiles(late_ms, n=100)
    return f"p50 {cuts[49]:,.0f}, p99 {cuts[98]:,.0f}, max {max(late_ms):,.0f} ({len(late_ms):,})"


def signalled(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--customers", type=int, default=24)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), options.seed, options.customers)
        try:
            start = time.monotonic()
            soak.load.start()
            try:
                soak.torment(60 * options.minutes)
            finally:
                soak.load.stop()
            soak.finish()
            print(soak.table(time.monotonic() - start))
            for violation in soak.found[:50]:
                print(*violation)
            return 1 if soak.found else 0
        finally:
            soak.close()


if __name__ == "__main__":
    sys.exit(main())
