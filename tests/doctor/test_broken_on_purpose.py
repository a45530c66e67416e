"""An installation that is well, then broken on purpose: `doctor` alone says which of these it was."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import sqlalchemy as sa

from devtools import processes
from devtools.postgres import Postgres
from devtools.processes import ROOT, Process, wait_until
from devtools.valkey import Valkey, private_valkey
from orders.features.webhooks.domain import WEBHOOK_QUEUE  # <webhooks/>
from orders.features.webhooks.tables import webhook_deliveries  # <webhooks/>
from orders.timeouts import flows as order_flows
from tests.kit.api import Api, serving
from tests.kit.databases import DURABLE, upgrade
from tests.kit.moments import now
from tests.kit.receiver import receiving
from worker import DelayQueue, Flow, Task
from worker.queue.replies import WorkerStatus

FLOWS = f"{__name__}:flows"
#: Of the flow whose handler never returns: a call may take three of them before the doctor calls it stuck.
LEASE_SECONDS = 1
#: A process that the doctor is started in, after some lines that change what it finds there.
START = "import runpy; runpy.run_module('worker', run_name='__main__', alter_sys=True)"


def flows() -> list[Flow]:
    """The service's, and one whose handler never returns."""

    def wait(_tasks: Sequence[Task]) -> None:
        threading.Event().wait()

    return [*order_flows(), Flow(name="stuck", handler=wait, lease_seconds=LEASE_SECONDS)]


class Diagnosis(NamedTuple):
    """What the doctor says: its exit status, and the lines that are not ok."""

    status: int
    lines: list[dict[str, str]]

    def checks(self) -> set[str]:
        return {line["check"] for line in self.lines}


@dataclass
class Installation:
    """A database, a Valkey, the API's application and a worker, all of them a test's own."""

    api: Api
    postgres: Postgres
    database: str
    valkey: Valkey
    worker: Process
    env: dict[str, str]
    stack: ExitStack

    def doctor(self, before: str = "") -> Diagnosis:
        done = subprocess.run(
            [sys.executable, "-c", f"{before}\n{START}", "doctor", FLOWS, "--json"],
            cwd=ROOT,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) > 15, "the rest is examined all the same"
        return Diagnosis(done.returncode, [line for line in lines if line["level"] != "ok"])

    def order(self, **body: Any) -> str:
        placed: Any = self.api.place(**body).get_json()
        return str(placed["id"])

    def execute(self, *statements: str) -> None:
        with self.api.services.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def configure(self, name: str, value: str) -> None:
        """Change a setting of Redis."""
        self.api.services.redis.config_set(name, value)

    def status_of(self, order_id: str) -> str:
        found: Any = self.api.send("GET", f"/v1/orders/{order_id}").get_json()
        return str(found["status"])


@pytest.fixture(scope="module")
def lazy_postgres(own_postgres: Postgres) -> Postgres:
    """Its autovacuum is on, and does not come by during a test."""
    own_postgres.execute("ALTER SYSTEM SET autovacuum_naptime = '1d'")
    own_postgres.execute("SELECT pg_reload_conf()")
    return own_postgres


@pytest.fixture
def well(lazy_postgres: Postgres, tmp_path: Path) -> Iterator[Installation]:
    """An installation that has just been migrated and has cancelled its first order; never analysed."""
    name = f"broken_{uuid4().hex}"
    lazy_postgres.execute(f"CREATE DATABASE {name}")
    url = lazy_postgres.url(name)
    upgrade(url)
    with ExitStack() as stack:
        stack.callback(lazy_postgres.start)  # unless it runs
        valkey = stack.enter_context(private_valkey(tmp_path / "valkey", *DURABLE))
        env = {
            "DATABASE_URL": url,
            "REDIS_URL": valkey.url,
            "MAX_FAILURES": "1",
            "WEBHOOK_ALLOW_PRIVATE": "1",  # <webhooks/>
        }
        settings: dict[str, Any] = {
            "webhook_allow_private": True,  # <webhooks/>
        }
        api = stack.enter_context(serving(url, valkey.url, **settings))
        command = ["worker", "run", FLOWS]
        worker = processes.python(command, env, tmp_path / "worker.log")
        stack.callback(worker.kill)
        made = Installation(api, lazy_postgres, name, valkey, worker, env, stack)
        api.pay(made.order())
        first = made.order(timeout_seconds=1)
        wait_until(lambda: made.status_of(first) == "cancelled", "the first cancellation")
        yield made


# -- what is broken ------------------------------------------------------------------------


def eviction(site: Installation) -> None:
    site.configure("maxmemory-policy", "allkeys-lru")


def no_worker(site: Installation) -> None:
    assert site.worker.stop() == 0


def stuck_handler(site: Installation) -> None:
    queue = DelayQueue(site.api.services.redis, "stuck")
    queue.schedule("order-7", delay_ms=0)
    wait_until(lambda: queue.stats().leased, "its handler to begin")
    # A worker that has done something beats within two seconds; an idle one may take twenty.
    site.order(timeout_seconds=1)
    wait_until(
        lambda: any(map(is_stuck, queue.workers())),
        "the worker to report what it has held for long",
    )


def is_stuck(worker: WorkerStatus) -> bool:
    held_for = worker.details["oldest_seconds"]
    return bool(held_for > 0 and held_for + worker.heard_ms_ago / 1000 > 3 * LEASE_SECONDS)


def unreachable(site: Installation) -> None:
    site.postgres.kill()  # at once: a worker claims nothing once it has not read pauses for 5 s
    have_the_worker_notice(site)


def read_only(site: Installation) -> None:
    site.postgres.execute(f"ALTER DATABASE {site.database} SET default_transaction_read_only = on")
    site.execute(  # the setting is that of new sessions
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    have_the_worker_notice(site)


def have_the_worker_notice(site: Installation) -> None:
    """An idle worker asks nothing of SQL."""
    queue = DelayQueue(site.api.services.redis, "order-timeout")
    nobodys = str(uuid4())
    queue.schedule(nobodys, delay_ms=0)
    wait_until(
        lambda: not any(worker.details["up"] for worker in queue.workers()), "the worker to notice"
    )
    queue.cancel(nobodys)


def poison(site: Installation) -> None:
    site.execute(
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE 'poison'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER refuse BEFORE DELETE ON unpaid_orders FOR EACH ROW"
        " WHEN (OLD.client_reference = 'poison') EXECUTE FUNCTION refuse()",
    )
    site.order(timeout_seconds=1, client_reference="poison")
    queue = DelayQueue(site.api.services.redis, "order-timeout")
    wait_until(lambda: queue.stats().dead == 1, "it to die")


def memory_full(site: Installation) -> None:
    site.configure("maxmemory", "1mb")


# <webhooks>
def webhooks_failing(site: Installation) -> None:
    receiver = site.stack.enter_context(receiving())
    receiver.status = 500
    made = site.api.send("POST", "/v1/webhooks", {"url": receiver.url, "events": ["order.created"]})
    assert made.status_code == 201
    site.order()
    for attempts in (1, 2, 3):
        wait_until(partial(has_failed, site, attempts), f"failure number {attempts}")
        # Without the time between two attempts.
        with site.api.services.engine.begin() as connection:
            connection.execute(sa.update(webhook_deliveries).values(due_at=now()))
        if attempts < 3:
            scheduler = site.api.services.scheduler_of(WEBHOOK_QUEUE)
            scheduler.schedule((made.json or {})["id"], delay_ms=0)


def has_failed(site: Installation, attempts: int) -> bool:
    with site.api.services.engine.connect() as connection:
        [made] = connection.scalars(sa.select(webhook_deliveries.c.attempts))
        return bool(made >= attempts)  # a slow test may be overtaken by the next


# </webhooks>


def stock(site: Installation) -> None:
    site.execute("UPDATE stock_items SET reserved = reserved + 1 WHERE sku = 'tea'")


def nothing(_: Installation) -> None:
    """What is wrong is the doctor's own clock."""


class Broken(NamedTuple):
    """What was broken, and which lines say so."""

    break_it: Callable[[Installation], None]
    level: str
    checks: set[str]
    summary: str
    #: What changes in the doctor's process before it starts.
    before: str = ""


STUCK_SOONER = "import worker.doctor.queues; worker.doctor.queues.STUCK_SECONDS = 0"
WRONG_CLOCK = "import time; right = time.time; time.time = lambda: right() + 60"

BROKEN = {
    "wrong eviction policy": Broken(eviction, "failure", {"redis.eviction"}, "allkeys-lru"),
    "no worker running": Broken(no_worker, "failure", {"queue.workers"}, "no worker of"),
    "worker stuck in a handler": Broken(
        stuck_handler, "warning", {"queue.stuck"}, "order-7", STUCK_SOONER
    ),
    "SQL unreachable": Broken(unreachable, "failure", {"sql.answers"}, "database does not answer"),
    "SQL read-only": Broken(read_only, "failure", {"sql.writes", "flow.probe"}, "read-only"),
    "clock off by a minute": Broken(
        nothing, "warning", {"redis.clock", "sql.clock"}, "s behind this host's", WRONG_CLOCK
    ),
    "poison order": Broken(poison, "warning", {"queue.dead"}, "failed too often"),
    "Redis memory full": Broken(memory_full, "failure", {"redis.memory"}, "full: "),
    # <webhooks>
    "webhooks failing": Broken(webhooks_failing, "warning", {"orders.webhooks"}, "HTTP 500"),
    # </webhooks>
    "stock that does not add up": Broken(stock, "failure", {"orders.stock"}, "tea: "),
}


@pytest.mark.slow  # each breaks an installation of its own
@pytest.mark.parametrize("what", BROKEN)
def test_doctor_says_which_of_these_was_broken(well: Installation, what: str) -> None:
    broken = BROKEN[what]
    assert well.doctor() == (0, []), "before it is broken"
    broken.break_it(well)
    status, lines = found = well.doctor(broken.before)
    assert found.checks() == broken.checks
    assert {line["level"] for line in lines} == {broken.level}
    assert status == {"warning": 1, "failure": 2}[broken.level]
    assert any(broken.summary in line["summary"] for line in lines), lines
    assert all(line["advice"] for line in lines)
