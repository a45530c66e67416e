"""Every test of the contract runs on each server, and on the fake held to the same contract."""

import os
from collections.abc import Iterator

import fakeredis
import pytest
import redis

from devtools.valkey import Valkey, redis_62_server
from tests.kit.databases import DURABLE, missing
from tests.kit.length import quick_first
from tests.kit.queue_state import Messages
from worker import DelayQueue, connect


def _servers() -> list[str]:
    """Those that come as wheels; where VALKEY_SERVER chooses one, that one alone."""
    if "VALKEY_SERVER" in os.environ:
        return ["chosen"]
    return ["valkey", *(["redis-6.2"] if redis_62_server() else []), "fakeredis"]


SERVERS = _servers()
REAL = [name for name in SERVERS if name != "fakeredis"]


@pytest.fixture(scope="session", params=quick_first(SERVERS))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Valkey | None]:
    """Each server, started once; None for the fake."""
    if request.param == "fakeredis":
        yield None
        return
    program = redis_62_server() if request.param == "redis-6.2" else None
    started = Valkey(tmp_path_factory.mktemp("server"), *DURABLE, program=program)
    try:
        started.start()
    except (RuntimeError, OSError) as error:
        missing(f"{request.param} server", error)
    yield started
    started.stop()


@pytest.fixture
def client(server: Valkey | None) -> Iterator[redis.Redis]:
    """A client of the empty server."""
    client = (
        connect(server.url, timeout_seconds=5)
        if server
        else fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
    )
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def queue(client: redis.Redis) -> DelayQueue:
    return DelayQueue(client, "contract")


@pytest.fixture
def messages(client: redis.Redis, queue: DelayQueue) -> Iterator[Messages]:
    listener = Messages(client, queue)
    yield listener
    listener.close()
