"""Every test of the contract runs on a real Valkey, and on the fake held to the same contract."""

from collections.abc import Iterator

import fakeredis
import pytest
import redis

from worker import DelayQueue


@pytest.fixture(params=["valkey", "fakeredis"])
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    if request.param == "valkey":
        yield request.getfixturevalue("redis_client")
        return
    fake = fakeredis.FakeRedis(protocol=2)
    yield fake
    fake.close()


@pytest.fixture
def queue(client: redis.Redis) -> DelayQueue:
    return DelayQueue(client, "contract")
