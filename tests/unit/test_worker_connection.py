"""Clients are made without a server, and let go of without one."""

from types import MethodType
from typing import Any

import pytest
import redis
from redis.connection import SSLConnection
from redis.sentinel import SentinelManagedSSLConnection

from worker import DelayQueue, connect


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/orders/0",
        "redis+cluster://127.0.0.1:1",
    ],
)
def test_a_client_that_never_connected_is_closed_in_silence(url: str) -> None:
    client = connect(url, timeout_seconds=0.1)
    client.close()
    with pytest.raises(redis.RedisError):
        client.ping()
    client.close()


@pytest.mark.parametrize("separator", [" ", ",", ", "])
@pytest.mark.parametrize("url", ["redis://:secret@one:6379/0", "redis+cluster://one"])
def test_several_urls_are_refused(url: str, separator: str) -> None:
    with pytest.raises(ValueError, match=r"several URLs: write one, of a Redis Cluster") as error:
        connect(f"{url}{separator}redis://two")
    assert "secret" not in str(error.value)


def test_sentinels_without_a_service_are_refused() -> None:
    with pytest.raises(ValueError, match="names a service"):
        connect("redis+sentinel://127.0.0.1:26379")


def test_a_cluster_is_let_go_of_like_any_other_client() -> None:
    with connect("redis+cluster://127.0.0.1:1", timeout_seconds=0.1) as client:
        assert isinstance(client.close, MethodType)


def test_sentinels_may_have_ipv6_tls_and_their_own_password() -> None:
    hosts = "[::1]:26380,[fe80::2],sentinel"
    login = "sentinel_username=u&sentinel_password=p%40"
    client: Any = connect(f"rediss+sentinel://:secret@{hosts}/orders/2?{login}")
    pool = client.connection_pool
    sentinels = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
    assert [(s["host"], s["port"]) for s in sentinels] == [
        ("::1", 26380),
        ("fe80::2", 26379),
        ("sentinel", 26379),
    ]
    assert {(s["username"], s["password"]) for s in sentinels} == {("u", "p@")}
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (2, "secret")
    assert pool.connection_class is SentinelManagedSSLConnection
    for sentinel in pool.sentinel_manager.sentinels:
        assert sentinel.connection_pool.connection_class is SSLConnection


@pytest.mark.parametrize("url", ["redis://host", "redis+sentinel://host/orders"])
@pytest.mark.parametrize("reconnect", [False, True])
def test_only_what_finds_its_connection_closed_is_sent_again(url: str, *, reconnect: bool) -> None:
    client: Any = connect(url, reconnect=reconnect)
    retry = client.connection_pool.connection_kwargs["retry"]
    assert retry.get_retries() == int(reconnect)
    assert retry._supported_errors == (redis.ConnectionError,)


def test_no_cluster_client_sends_again_what_timed_out() -> None:
    kind = connect("redis+cluster://host", reconnect=True)._make.func.__self__  # type: ignore[attr-defined]
    assert redis.ConnectionError in kind.ERRORS_ALLOW_RETRY
    assert redis.TimeoutError not in kind.ERRORS_ALLOW_RETRY


@pytest.mark.parametrize(("wanted", "limit"), [(16, 100), (200, 200)])
def test_many_threads_get_a_connection_each_if_the_pool_is_plain(wanted: int, limit: int) -> None:
    primary = connect("redis+sentinel://host/orders", max_connections=wanted)
    assert primary.connection_pool.max_connections == limit
    cluster: Any = connect("redis+cluster://host", max_connections=wanted)
    assert cluster._make.keywords["max_connections"] == limit


def test_a_parameter_that_sentinels_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="takes sentinel_username and sentinel_password"):
        connect("redis+sentinel://host/orders/0?socket_timeout=3")


def test_a_queue_refuses_a_client_that_decodes_responses() -> None:
    client = redis.Redis(decode_responses=True)
    with pytest.raises(ValueError, match="must not have decode_responses"):
        DelayQueue(client, "a")
    client.close()
