"""Every test of the contract runs on each server, and on the fake held to the same contract.

Those marked `every_producer` run twice: a `DelayQueue` schedules and cancels, or an `AsyncDelayQueue`.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import redis

from devtools.valkey import Valkey, redis_62_server
from tests.conftest import DURABLE, missing
from tests.contract.state import Messages
from tests.length import quick_first
from worker import (
    AsyncDelayQueue,
    Cancelled,
    DelayQueue,
    Scheduled,
    Stats,
    connect,
    connect_async,
)

every_producer = pytest.mark.parametrize("producer", ["sync", "async"], indirect=True)


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
def fake_server() -> fakeredis.FakeServer:
    """What clients of the fake share."""
    return fakeredis.FakeServer()


@pytest.fixture
def client(server: Valkey | None, fake_server: fakeredis.FakeServer) -> Iterator[redis.Redis]:
    """A client of the empty server."""
    client = (
        connect(server.url, timeout_seconds=5)
        if server
        else fakeredis.FakeRedis(server=fake_server, protocol=2)
    )
    client.flushall()
    yield client
    client.close()


class AsyncProduced(DelayQueue):
    """A queue whose producer's methods are those of an `AsyncDelayQueue`, run on an event loop."""

    def __init__(
        self, client: redis.Redis, producer: AsyncDelayQueue, runner: asyncio.Runner
    ) -> None:
        super().__init__(client, producer.name)
        self._producer = producer
        self._runner = runner

    def schedule(self, *args: Any, **settings: Any) -> Scheduled:
        return self._runner.run(self._producer.schedule(*args, **settings))

    def schedule_many(self, *args: Any, **settings: Any) -> list[Scheduled]:
        return self._runner.run(self._producer.schedule_many(*args, **settings))

    def cancel(self, *args: Any, **settings: Any) -> Cancelled:
        return self._runner.run(self._producer.cancel(*args, **settings))

    def cancel_many(self, *args: Any, **settings: Any) -> list[Cancelled]:
        return self._runner.run(self._producer.cancel_many(*args, **settings))

    def stats(self, *args: Any, **settings: Any) -> Stats:
        return self._runner.run(self._producer.stats(*args, **settings))


@pytest.fixture
def producer(request: pytest.FixtureRequest) -> str:
    """Which class schedules and cancels; see `every_producer`."""
    return str(getattr(request, "param", "sync"))


@pytest.fixture
def queue(
    client: redis.Redis, server: Valkey | None, fake_server: fakeredis.FakeServer, producer: str
) -> Iterator[DelayQueue]:
    if producer == "sync":
        yield DelayQueue(client, "contract")
        return
    async_client = (
        connect_async(server.url, timeout_seconds=5)
        if server
        else fakeredis.FakeAsyncRedis(server=fake_server, protocol=2)
    )
    with asyncio.Runner() as runner:
        yield AsyncProduced(client, AsyncDelayQueue(async_client, "contract"), runner)
        runner.run(async_client.aclose())


@pytest.fixture
def messages(client: redis.Redis, queue: DelayQueue) -> Iterator[Messages]:
    listener = Messages(client, queue)
    yield listener
    listener.close()
