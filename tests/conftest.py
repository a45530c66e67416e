"""Real servers, started once; each test finds them empty.

A server that cannot start skips the tests that need it, and fails them where CI is set.
"""

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from devtools.postgres import Postgres
from devtools.processes import LOGS, log_end
from devtools.valkey import Valkey
from orders.feature import features
from tests.kit.api import Api, serving
from tests.kit.databases import (
    DISCONNECT_OTHERS,
    DURABLE,
    ReusedDatabase,
    connected,
    empty_database,
    missing,
    upgrade,
)
from tests.kit.shop import PATIENT, Shop, opened
from tests.kit.site import Build, Site
from worker import connect

# How long an example takes says how busy the machine is.
hypothesis_settings.register_profile(
    "busy machine",
    hypothesis_settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


hypothesis_settings.load_profile("busy machine")


features()  # whose tables belong to the metadata


#: Each has a PostgreSQL of its own, and a container may show more cores than it is given.
MOST_PROCESSES = 8


BEGAN = pytest.StashKey[float]()


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its level: what it needs says its fixtures, and which are about faults its file's name."""
    for item in items:
        if {"postgres", "own_postgres"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker("postgres")
        if "faults" in item.nodeid.partition("::")[0]:
            item.add_marker("faults")


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


@pytest.fixture
def tick(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by which credentials are cached."""
    now = [100.0]
    monkeypatch.setattr("orders.caches.monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


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


@pytest.fixture
def api(migrated_url: str, valkey: Valkey, redis_client: redis.Redis) -> Iterator[Api]:  # noqa: ARG001  empties it
    """The application on an empty database and an empty Valkey."""
    with serving(migrated_url, valkey.url) as made:
        yield made


@pytest.fixture
def build(tmp_path: Path, migrated_url: str) -> Iterator[Build]:
    """Makes a site with the settings it is given, on a migrated database without orders."""
    sites: list[Site] = []

    def make(*, valkey: Valkey | None = None, **settings: str) -> Site:
        sites.append(Site(tmp_path, migrated_url, settings, valkey=valkey))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def patient_shop(migrated_url: str) -> Iterator[Shop]:
    """The order service, alone, for searches."""
    with opened(migrated_url, **PATIENT) as made:
        yield made


@pytest.fixture
def bare(migrated_url: str) -> Iterator[Api]:
    """The application on a migrated database, before there is any key."""
    made = Api(migrated_url, "redis://127.0.0.1:1/0")
    yield made
    made.close()
