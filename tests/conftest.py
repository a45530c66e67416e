"""Real servers, started once; each test finds them empty.

A server that cannot start skips the tests that need it, and fails them where CI is set.
"""

import functools
import gc
import os
import signal
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from flask import Flask
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from werkzeug.test import TestResponse

from devtools.postgres import Postgres
from devtools.processes import LOGS, ROOT, log_end
from devtools.valkey import Valkey
from orders.app import create_app
from orders.bootstrap import Services, bootstrap
from orders.clients.service import Clients
from orders.config import Settings
from orders.ops.routes import Tools
from orders.order.domain import NewOrder, Order, Timeouts
from orders.order.payments import PaymentResult
from orders.order.service import OrderService
from orders.sql.database import autocommit, create_engine
from orders.sql.expressions import later, now
from orders.sql.tables import metadata, order_items, orders, stock_items, unpaid_orders
from orders.stock.service import StockService
from tests.conformance import Conformance
from tests.states import states, status
from worker import connect

# How long an example takes says how busy the machine is.
hypothesis_settings.register_profile(
    "busy machine",
    hypothesis_settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("busy machine")

#: Each has a PostgreSQL of its own, and a container may show more cores than it is given.
MOST_PROCESSES = 8
BEGAN = pytest.StashKey[float]()

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


def pytest_configure() -> None:
    # Tests start hundreds of processes: compiling modules anew in each takes as long as a third of them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A script's background jobs ignore SIGINT, and so would the processes that tests end by it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    # Modules and tests stay to the end. Searching them for garbage took a third of the time of collecting
    # them, and some of each test's.
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)  # there may be no xdist
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: two processes to a core, as most tests wait rather than compute."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    return min(2 * cores, MOST_PROCESSES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failure what servers and workers wrote last, if it was during the test."""
    if call.when == "setup":
        item.stash[BEGAN] = call.start
    report = yield
    if report.failed:
        for log in sorted(LOGS):
            if log.exists() and log.stat().st_mtime >= item.stash[BEGAN]:
                report.sections.append((f"End of {log}", log_end(log)))
    return report


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A Valkey for all tests. Who wants to break one starts another."""
    try:
        server = Valkey(tmp_path_factory.mktemp("valkey"), *DURABLE).start()
    except (RuntimeError, OSError) as error:
        missing("Valkey", error)
    yield server
    server.stop()


@pytest.fixture
def redis_client(valkey: Valkey) -> Iterator[redis.Redis]:
    """A client of the empty Valkey."""
    client = connect(valkey.url, timeout_seconds=60)
    client.flushall()
    client.config_resetstat()
    yield client
    client.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL for all tests. Who wants to break one starts another."""
    server = Postgres(fsync=False)
    try:
        server.start()
    except (RuntimeError, OSError) as error:
        server.remove()
        missing("PostgreSQL", error)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL that tests may break, and leave running; each has databases of its own in it."""
    server = Postgres()
    try:
        yield server.start()
    finally:
        server.remove()


@contextmanager
def empty_database(postgres: Postgres, options: str = "") -> Iterator[str]:
    """The URL of a new database, deleted afterwards; ``options`` are those of CREATE DATABASE."""
    name = f"test_{uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name} {options}")
    yield postgres.url(name)
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database_url(postgres: Postgres) -> Iterator[str]:
    """An empty PostgreSQL database, deleted after the test."""
    with empty_database(postgres) as url:
        yield url


@pytest.fixture(scope="module")
def shared_url(postgres: Postgres) -> Iterator[str]:
    """A database with the schema, for all tests of one module."""
    with empty_database(postgres) as url:
        upgrade(url)
        yield url


@pytest.fixture(scope="session")
def records_database(postgres: Postgres) -> Iterator[str]:
    """One for all tests of records, which drop their tables sooner than a database is made."""
    with empty_database(postgres) as url:
        yield url


@pytest.fixture
def records_url(records_database: str) -> Iterator[str]:
    """An empty database for a test of records."""
    yield records_database
    with connected(records_database) as connection:
        connection.execute(DISCONNECT_OTHERS)
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


DISCONNECT_OTHERS = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection to the database at a URL of SQLAlchemy's, in autocommit."""
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True, prepare_threshold=None)


def missing(server: str, error: Exception) -> None:
    """Skip the test, or fail it where CI is set."""
    say = pytest.fail if os.environ.get("CI") else pytest.skip
    say(f"{server} does not start: {error}")


class RecordingScheduler:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.scheduled: list[tuple[str, float]] = []
        self.cancelled: list[str] = []

    def schedule(self, order_id: str, *, delay_ms: float, even_if_dead: bool = False) -> None:  # noqa: ARG002
        self.scheduled.append((order_id, delay_ms))

    def cancel(self, order_id: str) -> None:
        self.cancelled.append(order_id)


@dataclass(frozen=True)
class Shop:
    """The order service on a migrated database, with two clients."""

    engine: sa.Engine
    service: OrderService
    stock_service: StockService
    scheduler: RecordingScheduler
    client: str
    other: str

    def stock(
        self, sku: str = "tea", on_hand: int = 100, price_minor: int = 250, currency: str = "EUR"
    ) -> None:
        self.stock_service.set(sku, on_hand=on_hand, price_minor=price_minor, currency=currency)

    def place(self, client: str | None = None, *, key: str = "", **quantities: int) -> Order:
        """One tea, unless told otherwise."""
        return self.basket(quantities or {"tea": 1}, client or self.client, key)

    def new(self, key: str = "", **values: Any) -> NewOrder:
        """An order for one tea, unless told otherwise."""
        given = {"client_id": self.client, "key": key or uuid4().hex, "fingerprint": "f"}
        return NewOrder(**{**given, "quantities": {"tea": 1}, **values})

    def basket(self, quantities: Mapping[str, int], client: str = "", key: str = "") -> Order:
        owner = client or self.client
        placed = self.service.place(
            NewOrder(
                client_id=owner,
                key=key or uuid4().hex,
                fingerprint=sha256(repr(quantities).encode()).hexdigest(),
                quantities=quantities,
            )
        )
        return self.service.order(owner, placed.order.id)

    def pay(self, order: Order, reference: str = "", **other: Any) -> PaymentResult:
        """What the order costs, at its bank, unless told otherwise."""
        payment: dict[str, Any] = {"provider": "bank", "reference": reference or uuid4().hex}
        payment |= {"amount_minor": order.total_minor, "currency": order.currency, **other}
        return self.service.pay(self.client, order.id, **payment)

    def expire_in(self, ms: int, *placed: Order) -> None:
        """Move deadlines to so many milliseconds from now; to the past when negative."""
        deadline = later(now(), "ms")
        with self.engine.begin() as connection:
            for order in placed:
                row = unpaid_orders.c.order_id == order.id
                moved = sa.update(unpaid_orders).where(row).values(expires_at=deadline)
                connection.execute(moved, {"ms": ms})

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table."""
        with autocommit(self.engine) as connection:
            return {
                table.name: sorted(
                    (tuple(row) for row in connection.execute(sa.select(table))), key=repr
                )
                for table in metadata.sorted_tables
            }

    def statuses(self) -> dict[str, str]:
        """The status of each order."""
        with self.engine.begin() as connection:
            found = connection.execute(sa.select(states.c.order_id, status))
            return {row.order_id: row.status for row in found}

    def events(self, order: Order) -> list[str]:
        found = self.service.events(self.client, order.id, after_id=0, page_size=100)
        return [event.type for event in found]

    def shelf(self, sku: str = "tea") -> tuple[int, int]:
        """How much is on hand and reserved."""
        item = self.stock_service.get(sku)
        return item.on_hand, item.reserved

    def check(self, **stocked: int) -> None:
        """Stock is conserved, and each order ended at most once, in the way it says."""
        quantity = sa.func.sum(order_items.c.quantity)
        per_status = (
            sa.select(order_items.c.sku, status, quantity)
            .join(states, states.c.order_id == order_items.c.order_id)
            .group_by(order_items.c.sku, status)
        )
        with self.engine.begin() as connection:
            sums = {(sku, status): n for sku, status, n in connection.execute(per_status)}
            for sku, on_hand in stocked.items():
                row = connection.execute(sa.select(stock_items).filter_by(sku=sku)).one()
                assert row.reserved == sums.get((sku, "unpaid"), 0)
                assert row.on_hand == on_hand - sums.get((sku, "paid"), 0)
            placed = connection.execute(sa.select(orders.c.id).order_by(orders.c.id)).scalars()
            of_state = sa.select(states.c.order_id).order_by(states.c.order_id)
            assert connection.execute(of_state).scalars().all() == placed.all()


#: What a change of the schema or of the database's settings changes, and a TRUNCATE does not.
SHAPE = """
SELECT (SELECT (count(*), max(xmin::text::bigint)) FROM pg_attribute),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_constraint),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_index),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_proc),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_trigger),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_type),
    (SELECT array_agg(reloptions ORDER BY oid) FROM pg_class WHERE reloptions IS NOT NULL),
    (SELECT array_agg(setconfig) FROM pg_db_role_setting),
    (SELECT array_agg(version_num) FROM alembic_version)
"""


class SchemaChanged(Exception):
    """A test changed the schema or the settings of its database."""


class ReusedDatabase:
    """A database with the schema, emptied after each test: 10 ms instead of a second for a new one.

    A test that changes the schema or the database's settings costs a new one.
    """

    #: Above this size of a table, TRUNCATE; below it, DELETE takes a twentieth of the time.
    LARGE_BYTES = 64 * 1024

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._template = f"template_{uuid4().hex}"
        postgres.execute(f"CREATE DATABASE {self._template}")
        upgrade(postgres.url(self._template))
        self._create()

    def restore(self) -> None:
        """Disconnect whoever is left, and empty it."""
        try:
            self._empty()
        except (SchemaChanged, psycopg.Error):
            self.close()
            self._postgres.execute(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            self._create()

    def close(self) -> None:
        self._connection.close()

    def _create(self) -> None:
        self._name = f"test_{uuid4().hex}"
        self._postgres.execute(f"CREATE DATABASE {self._name} TEMPLATE {self._template}")
        self.url = self._postgres.url(self._name)
        # Kept: a new one takes longer to learn what tables there are than to empty them.
        self._connection = connected(self.url)
        self._shape = self._connection.execute(SHAPE).fetchone()

    def _empty(self) -> None:
        filled = (
            "SELECT relname, pg_relation_size(oid) FROM pg_class "
            "WHERE relname = ANY(%s) AND pg_relation_size(oid) > 0"
        )
        execute = self._connection.execute
        execute(DISCONNECT_OTHERS)
        if execute(SHAPE).fetchone() != self._shape:
            raise SchemaChanged
        sizes = dict(execute(filled, ([*metadata.tables],)).fetchall())
        if max(sizes.values(), default=0) > self.LARGE_BYTES:
            statements = [f"TRUNCATE {', '.join(sizes)} RESTART IDENTITY CASCADE"]
        else:  # without foreign keys, in any order
            statements = ["SET session_replication_role = replica"]
            statements += [str(metadata.tables[name].delete()) for name in sizes]
            statements += ["SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"]
        execute("; ".join(statements).encode())


@pytest.fixture(scope="session")
def reused_database(postgres: Postgres) -> Iterator[ReusedDatabase]:
    made = ReusedDatabase(postgres)
    yield made
    made.close()


@pytest.fixture
def migrated_url(reused_database: ReusedDatabase) -> Iterator[str]:
    """A database with the schema and nothing in it."""
    yield reused_database.url
    reused_database.restore()


@pytest.fixture
def shop(migrated_url: str) -> Iterator[Shop]:
    """The order service, alone, with a hundred teas."""
    with opened(migrated_url) as made:
        made.stock()
        yield made


@contextmanager
def opened(url: str, **settings: Any) -> Iterator[Shop]:
    """A shop on a migrated database."""
    made = Settings(database_url=url, redis_url="redis://nowhere", **settings)
    with an_engine(made) as engine:
        scheduler = RecordingScheduler()
        service = OrderService(engine, scheduler, Timeouts(1800, 1, 86_400))
        clients = Clients(engine)
        ids = [
            client_id(clients, clients.create_key(name, ["orders"]))
            for name in ("customer", "other")
        ]
        yield Shop(engine, service, StockService(engine), scheduler, *ids)


#: Engines between two tests, with the statements that they have compiled: compiling them anew takes
#: longer than most tests.
IDLE_ENGINES: dict[Settings, sa.Engine] = {}


@contextmanager
def an_engine(settings: Settings) -> Iterator[sa.Engine]:
    """An engine that nobody else uses. It has no connection yet, and what listens to it is forgotten."""
    engine = IDLE_ENGINES.pop(settings, None) or create_engine(settings)
    try:
        yield engine.execution_options()
    finally:
        engine.dispose()
        IDLE_ENGINES[settings] = engine


def client_id(clients: Clients, key: str) -> str:
    """The id of the client whose key this is."""
    client = clients.authenticate(key)
    assert client is not None
    return client.id


def upgrade(url: str) -> None:
    """Run the migrations."""
    config = Config(ROOT / "alembic.ini")
    config.attributes["engine"] = sa.create_engine(url, poolclass=sa.NullPool)
    command.upgrade(config, "head")


#: What the keys of an `Api` may do.
CLIENTS = {"customer": ["orders", "payments"], "other": ["orders", "payments"], "ops": ["ops"]}


@functools.cache
def _conformance() -> Conformance:
    return Conformance()


#: Applications between two tests. Making one takes longer than most tests: only what it is wired to
#: differs.
IDLE_APPS: list[Flask] = []


class Api:
    """The application with a test client, two customers' keys, and the shop's own."""

    def __init__(self, database_url: str, redis_url: str, **settings: Any) -> None:
        made = Settings(database_url=database_url, redis_url=redis_url, **settings)
        self._stack = ExitStack()
        engine = self._stack.enter_context(an_engine(made))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orders.bootstrap.create_engine", lambda _: engine)
            if IDLE_APPS and not made.trusted_proxies:
                self.app = IDLE_APPS.pop()
                wired = bootstrap(made)
                self.app.extensions.update(orders=wired, ops=Tools(wired))
            else:
                self.app = create_app(made)
        self.services: Services = self.app.extensions["orders"]
        self.http = self.app.test_client()
        self.keys: dict[str, str] = {}

    def make_keys(self) -> None:
        for name, scopes in CLIENTS.items():
            self.keys[name] = self.services.clients.create_key(name, scopes)

    def send(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        key: str | None = "customer",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> TestResponse:
        """A request with a client's API key; None sends none. The response is held to the document."""
        sent = dict(headers or {})
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {self.keys[key]}")
        response = self.http.open(path, method=method, json=json, headers=sent, **more)
        _conformance().check(method, path, response)
        return response

    def stock(self, sku: str = "tea", on_hand: int = 100, price_minor: int = 250) -> None:
        self.services.stock.set(sku, on_hand=on_hand, price_minor=price_minor, currency="EUR")

    def place(self, idempotency_key: str = "", **body: Any) -> TestResponse:
        """An order for one tea, unless told otherwise."""
        basket = {"items": [{"sku": "tea", "quantity": 1}], **body}
        headers = {"Idempotency-Key": idempotency_key or uuid4().hex}
        return self.send("POST", "/v1/orders", basket, headers=headers)

    def pay(self, order_id: str, reference: str = "r-1", **body: Any) -> TestResponse:
        payment = {"provider": "bank", "reference": reference, "amount_minor": 250}
        payment |= {"currency": "EUR", **body}
        return self.send("POST", f"/v1/orders/{order_id}/payments", payment)

    def close(self) -> None:
        self.services.close()
        self._stack.close()
        if not self.services.settings.trusted_proxies:
            IDLE_APPS.append(self.app)


@pytest.fixture
def frozen_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes for rate limits: what is used up does not come back, however slow the machine."""
    monkeypatch.setattr("throttled.utils.now_mono_f", lambda: 1000.0)


@contextmanager
def serving(database_url: str, redis_url: str, **settings: Any) -> Iterator[Api]:
    """The application on a migrated database, with some tea."""
    api = Api(database_url, redis_url, **settings)
    api.make_keys()
    api.stock()
    yield api
    api.close()


@pytest.fixture
def api(migrated_url: str, valkey: Valkey, redis_client: redis.Redis) -> Iterator[Api]:  # noqa: ARG001  empties it
    """The application on an empty database and an empty Valkey."""
    with serving(migrated_url, valkey.url) as made:
        yield made
