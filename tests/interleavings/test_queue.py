"""The queue's scripts in every order."""

from collections.abc import Iterator

import pytest
import redis

from devtools.valkey import Valkey
from tests.conftest import missing
from tests.interleavings.explorer import explore
from tests.interleavings.queue_world import QueueWorld
from tests.interleavings.scenarios import LARGE, PAIRS, SCENARIOS
from worker import connect


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    server = Valkey(tmp_path_factory.mktemp("interleavings"))
    try:
        server.start()
    except (RuntimeError, OSError) as error:
        missing("Valkey server", error)
    with connect(server.url, timeout_seconds=5) as client:
        yield client
    server.stop()


@pytest.mark.parametrize("line", SCENARIOS)
def test_no_order_breaks_a_promise(world: redis.Redis, line: str) -> None:
    assert explore(QueueWorld(world), line).complete


@pytest.mark.slow
@pytest.mark.parametrize("line", [*LARGE, *PAIRS])
def test_no_order_of_more_moves_does(world: redis.Redis, line: str) -> None:
    assert explore(QueueWorld(world), line).complete
