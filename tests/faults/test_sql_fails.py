"""An outage of the database is nobody's failure, and it is over when the database is back."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from devtools import processes
from devtools.postgres import Postgres
from devtools.processes import Process, free_port, wait_until
from orders.db.base import metadata
from tests.kit.checker import violations
from tests.kit.clock import bound
from tests.kit.load import Load
from tests.kit.pauses import last
from tests.kit.site import HURRIED, PATIENT, SKUS, STOCKED, Customer, Site, small_disk
from tests.kit.workers import frozen

#: Three failures in a row, at most 0.2 s apart, would be a dead letter.
SETTINGS = {"MAX_FAILURES": "3", "RETRY_BASE_SECONDS": "0.1", "RETRY_CAP_SECONDS": "0.2"}
RETRY_BUDGET_SECONDS = 0.4
#: How soon an API says that SQL is down, and how soon workers go on when it is not.
PATIENCE_SECONDS = 5
RESUMED_SECONDS = 10
CUSTOMERS = 16
#: What /readyz says of a server that takes no writes.
READ_ONLY = "The database is read-only: a standby, or a failover in progress."


@contextmanager
def opened(
    server: Postgres, folder: Path, name: str, *, url: str = "", **settings: str
) -> Iterator[Site]:
    server.execute(f"CREATE DATABASE {name}")
    site = Site(folder, url or server.url(name), settings)
    try:
        yield site
    finally:
        site.close()


@contextmanager
def under_load(site: Site, ports: Sequence[int], *, seed: int) -> Iterator[Load]:
    """Customers who order and pay meanwhile; afterwards orders are placed again, soon."""
    key = site.services.clients.create_key("load", ["orders", "payments"])
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    load = Load(urls, key, SKUS, customers=CUSTOMERS, seed=seed)
    load.start()
    try:
        wait_until(lambda: load.placed() >= CUSTOMERS, "some orders")
        yield load
        enough, soon = load.placed() + CUSTOMERS, bound(RESUMED_SECONDS)
        wait_until(lambda: load.placed() >= enough, "more orders", seconds=soon)
    finally:
        load.stop()
    site.wait_until_drained(bound(RESUMED_SECONDS))


def assert_nothing_is_broken(site: Site, worker: Process, load: Load) -> None:
    """Every promise is kept, and nothing counted as a failure."""
    history = site.history(load.responses)
    assert violations(history, stocked=STOCKED, drained=True) == []
    told = {(response.request, response.status) for response in load.responses}
    # A deadline may have changed, or passed, before the request to move it was answered.
    late = {("extend", 412), ("extend", 422)}
    assert {status for _, status in told - late} <= {200, 201, 202, 409, 503}
    assert "task failed" not in site.log(worker)


def backends(server: Postgres, database: str) -> list[int]:
    """The processes that serve the API and the workers."""
    with psycopg.connect(server.url(database).replace("+psycopg", "")) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = %s",
            [database],
        )
        return [pid for (pid,) in rows]


def test_sql_down_for_ten_times_all_retries_adds_no_dead_letter(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    with opened(own_postgres, tmp_path, "down", **SETTINGS) as site:
        worker = site.start_worker()
        with frozen(worker):
            ids = site.place(200, 1, 1)
            own_postgres.stop()
        wait_until(lambda: "unavailable" in site.log(worker), "the worker to notice")
        last(10 * RETRY_BUDGET_SECONDS)
        stats = site.queue.stats()
        assert (stats.dead, stats.leased, stats.scheduled) == (0, 0, 200)

        own_postgres.start()
        site.wait_until_drained()

        assert site.violations(drained=True) == []
        site.assert_each_was_cancelled_once(ids)
        site.assert_the_queue_is_empty()
        assert "task failed" not in site.log(worker)


@pytest.mark.slow
def test_a_database_restarted_under_load_breaks_no_promise(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    with opened(own_postgres, tmp_path, "load", **HURRIED) as site:
        ports = [free_port(), free_port()]
        for port in ports:
            site.start_api(port)
        worker = site.start_worker()
        with under_load(site, ports, seed=15) as load:
            own_postgres.kill()
            own_postgres.start()
        assert_nothing_is_broken(site, worker, load)


@pytest.mark.slow
def test_frozen_backends_hold_nobody_up_for_long(own_postgres: Postgres, tmp_path: Path) -> None:
    with opened(own_postgres, tmp_path, "frozen") as site:
        port = free_port()
        site.start_api(port)
        worker = site.start_worker()
        customer = Customer(site)
        assert [customer.order(port).status for _ in range(5)] == [201] * 5
        site.services.engine.dispose()
        frozen = backends(own_postgres, "frozen")
        assert len(frozen) >= 2
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            answers = [customer.order(port) for _ in range(3)]
            assert {answer.status for answer in answers} <= {201, 503}
            assert max(answer.seconds for answer in answers) <= bound(PATIENCE_SECONDS)
            wait_until(lambda: customer.order(port).status == 201, "an order to be placed")
            site.wait_until_drained(bound(RESUMED_SECONDS))
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        site.wait_until_drained()
        assert site.violations(customer, drained=True) == []
        assert "task failed" not in site.log(worker)


@pytest.mark.slow
def test_a_full_disk_is_an_outage_and_passes(tmp_path: Path) -> None:
    server = Postgres()
    with small_disk(server.folder, megabytes=150) as fill:
        server.folder.chmod(0o777)
        try:
            server.start()
            with opened(server, tmp_path, "full_disk", **SETTINGS) as site:
                fill_and_free(server, site, fill)
        finally:
            server.remove()


def fill_and_free(server: Postgres, site: Site, fill: Callable[[], Path]) -> None:
    port = free_port()
    site.start_api(port)
    worker = site.start_worker()
    customer = Customer(site)
    assert [customer.order(port).status for _ in range(20)] == [201] * 20
    filler = fill()

    def refused() -> bool:
        answer = customer.order(port)
        assert answer.status in {201, 503}
        assert answer.seconds <= bound(PATIENCE_SECONDS)
        return answer.status == 503

    wait_until(refused, "an order to be refused")
    wait_until(lambda: site.ready(port)[0] == 503, "the API to say so")
    filler.unlink()
    server.start()  # where it could not write its log, it has ended
    wait_until(lambda: customer.order(port).status == 201, "an order to be placed")
    site.wait_until_drained(bound(RESUMED_SECONDS))
    assert site.violations(customer, drained=True) == []
    assert "task failed" not in site.log(worker)


@pytest.mark.slow
def test_a_database_that_was_never_analysed_is_drained(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    with opened(own_postgres, tmp_path, "cold") as site:
        with site.services.engine.begin() as connection:
            for table in metadata.sorted_tables:
                connection.execute(sa.text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
        ids = site.place(4000, 0, 0)
        worker = site.start_worker()
        site.wait_until_drained()
        site.assert_each_was_cancelled_once(ids)
        assert "unavailable" not in site.log(worker)  # no statement took longer than it may


@pytest.mark.slow
def test_the_api_and_workers_wait_for_the_migration(own_postgres: Postgres, tmp_path: Path) -> None:
    with opened(own_postgres, tmp_path, "migrated", **PATIENT) as site:
        processes.run(["alembic", "stamp", "base"], site.env)
        port = free_port()
        site.start_api(port)
        assert site.ready(port)[0] == 503
        worker = site.start_worker(ready=False)
        processes.run(["alembic", "stamp", "head"], site.env)
        wait_until(lambda: site.ready(port) == (200, "ok"), "the API to see it")
        with under_load(site, [port], seed=23) as load:
            pass
        assert_nothing_is_broken(site, worker, load)
        refused = {each.body["code"] for each in load.responses if each.status == 503}
        assert refused <= {"stock_busy", "server_busy"}, "a busy machine's alone"


class Strangers:
    """Who hold every connection that a server has."""

    def __init__(self, server: Postgres, stack: ExitStack, database: str) -> None:
        self._url, self._stack = server.url().replace("+psycopg", ""), stack
        self._database = database
        self._first = stack.enter_context(psycopg.connect(self._url, autocommit=True))

    def crowd_out(self) -> None:
        """Take what is free, and what a database's users have, until they have nothing."""
        self._take_what_is_free()
        while self._first.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s",
            [self._database],
        ).rowcount:
            self._take_what_is_free()  # unless a user is first: then it loses it in the next round

    def _take_what_is_free(self) -> None:
        refused = ""
        while not refused:
            try:
                self._stack.enter_context(psycopg.connect(self._url))
            except psycopg.OperationalError as error:
                refused = str(error)
        assert "too many clients" in refused


@contextmanager
def read_only(server: Postgres, database: str) -> Iterator[Callable[[], object]]:
    """Have every new transaction refuse to write."""

    def switch(value: str) -> None:
        server.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = {value}")
        for pid in backends(server, database):
            server.execute(f"SELECT pg_terminate_backend({pid})")

    yield lambda: switch("on")
    switch("off")


@contextmanager
def crowded(server: Postgres, database: str) -> Iterator[Callable[[], object]]:
    """Have strangers hold every connection."""
    with ExitStack() as stack:
        yield Strangers(server, stack, database).crowd_out


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "ready"), [(read_only, READ_ONLY), (crowded, "")])
def test_a_database_that_refuses_is_an_outage_and_passes(
    own_postgres: Postgres,
    tmp_path: Path,
    fault: Callable[[Postgres, str], AbstractContextManager[Callable[[], object]]],
    ready: str,
) -> None:
    def is_down(status: int, said: str) -> bool:
        return status == 503 and ready in said

    name = fault.__name__
    with opened(own_postgres, tmp_path, name, **SETTINGS) as site:
        port = free_port()
        site.start_api(port)
        worker = site.start_worker()
        customer = Customer(site)
        with fault(own_postgres, name) as strike:
            with frozen(worker):
                placed = [customer.order(port, timeout_seconds=1) for _ in range(20)]
                assert {answer.status for answer in placed} == {201}
                site.services.engine.dispose()

                def refused() -> bool:
                    strike()
                    return customer.order(port).status == 503

                wait_until(refused, "an order to be refused")
            wait_until(lambda: '"unavailable"' in site.log(worker), "the worker to notice")
            answer = customer.order(port)
            assert (answer.status, answer.body["code"]) == (503, "storage_unavailable")
            assert int(answer.headers["retry-after"]) > 0
            wait_until(lambda: is_down(*site.ready(port)), "the API to say so")
            last(10 * RETRY_BUDGET_SECONDS)
            stats = site.queue.stats()
            assert (stats.dead, stats.leased) == (0, 0)
            assert stats.scheduled >= 20
        wait_until(lambda: customer.order(port).status == 201, "an order to be placed")
        site.wait_until_drained(bound(RESUMED_SECONDS))
        assert site.violations(customer, drained=True) == []
        wait_until(lambda: site.ready(port) == (200, "ok"), "the API to see it")
        assert "task failed" not in site.log(worker)


@pytest.mark.slow
def test_a_standby_takes_over_and_loses_no_confirmed_order(tmp_path: Path) -> None:
    primary = Postgres()
    with ExitStack() as stack:
        stack.callback(primary.remove)
        standby = primary.start().start_standby()
        stack.callback(standby.remove)
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (primary, standby))
        url = f"postgresql+psycopg://postgres@/shop?{hosts}&target_session_attrs=read-write"
        site = stack.enter_context(opened(primary, tmp_path, "shop", url=url, **HURRIED))
        ports = [free_port(), free_port()]
        for port in ports:
            site.start_api(port)
        worker = site.start_worker()
        with under_load(site, ports, seed=28) as load:
            primary.kill()
            standby.execute("SELECT pg_promote()")
        assert_nothing_is_broken(site, worker, load)
