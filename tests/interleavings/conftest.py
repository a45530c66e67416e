from collections.abc import Iterator

import pytest
import redis

from devtools.valkey import Valkey
from tests.kit.databases import missing
from worker import connect


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
