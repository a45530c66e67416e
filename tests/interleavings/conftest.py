"""What the searches run on: a Valkey, and a shop whose statements wait as long as a search has them wait."""

from collections.abc import Iterator

import pytest
import redis

from devtools.valkey import Valkey
from tests.conftest import Shop, missing, opened
from worker import connect

PATIENT = {"statement_timeout_seconds": 60, "lock_timeout_seconds": 60}


@pytest.fixture
def shop(migrated_url: str) -> Iterator[Shop]:
    with opened(migrated_url, **PATIENT) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    server = Valkey(tmp_path_factory.mktemp("interleavings"))
    try:
        server.start()
    except (RuntimeError, OSError) as error:
        missing("Valkey server", error)
    with connect(server.url, timeout_seconds=5) as client:
        yield client
    server.stop()
