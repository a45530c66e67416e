"""Real servers, started once; each test finds them empty.

A server that cannot start skips the tests that need it, and fails them where CI is set.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from examples.processes import Valkey
from tests.servers import Postgres
from worker import connect

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A Valkey for all tests. Who wants to break one starts another."""
    try:
        server = Valkey(tmp_path_factory.mktemp("valkey"), *DURABLE).start()
    except (RuntimeError, OSError) as error:
        _missing("Valkey", error)
    yield server
    server.stop()


@pytest.fixture
def redis_client(valkey: Valkey) -> Iterator[redis.Redis]:
    """A client of the empty Valkey."""
    client = connect(valkey.url, timeout_seconds=5)
    client.flushall()
    client.config_resetstat()
    yield client
    client.close()
    client.connection_pool.disconnect()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL for all tests. Who wants to break one starts another."""
    server = Postgres()
    try:
        server.start()
    except (RuntimeError, OSError) as error:
        server.remove()
        _missing("PostgreSQL", error)
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """An empty PostgreSQL database, deleted after the test."""
    name = f"test_{uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name}")
    yield postgres.url(name)
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/orders.db"
    return str(request.getfixturevalue("postgres_url"))


def _missing(server: str, error: Exception) -> None:
    say = pytest.fail if os.environ.get("CI") else pytest.skip
    say(f"{server} does not start: {error}")
