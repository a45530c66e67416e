"""Clients are made without a server, and let go of without one."""

import pytest
import redis

from worker import connect


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/orders/0",
        "redis+cluster://127.0.0.1:1",
    ],
)
def test_a_client_that_never_reached_its_server_is_closed_in_silence(url: str) -> None:
    client = connect(url, timeout_seconds=0.1)
    client.close()
    with pytest.raises(redis.RedisError):
        client.ping()
    client.close()


def test_sentinels_without_a_service_are_refused() -> None:
    with pytest.raises(ValueError, match="names a service"):
        connect("redis+sentinel://127.0.0.1:26379")
