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


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://s3cret:26379",
        "redis://host/s3cret",
        "redis://host/12a",
        "redis://host/1/2",
        "redis://host/-1",
        "redis://host/0#s3cret",
        "redis://host:99999",
        "redis://one,two",
        "redis://:s3/cret@host",
        "redis://:12#s3cret@host",
        "redis:///0",
        "redis+cluster://host/3",
        "redis+sentinel://host/orders/s3cret",
        "unix:///var/run/s3cret.sock",
    ],
)
def test_a_url_that_says_something_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not a Redis URL: write redis://") as error:
        connect(url)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host/3?db=5",
        "redis://host?ssl_cert_reqs=none",
        "redis://user:12?s3cret@host",
        "rediss://host?ssl_cert_reqs=s3cret",
        "redis+cluster://host?socket_timeout=3",
        "redis+sentinel://host/orders/0?socket_timeout=3",
    ],
)
def test_a_parameter_that_is_not_for_a_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the parameters of a Redis URL are") as error:
        connect(url)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("topology", ["", "+cluster", "+sentinel"])
def test_every_topology_has_tls_and_logs_in(topology: str) -> None:
    service = "/orders" if topology == "+sentinel" else ""
    client: Any = connect(f"rediss{topology}://user:p%2F@host{service}/0?ssl_cert_reqs=none\n")
    settings = (
        client._make.keywords
        if topology == "+cluster"
        else client.connection_pool.connection_kwargs
    )
    assert (settings["username"], settings["password"]) == ("user", "p/")
    assert settings["ssl_cert_reqs"] == "none"


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
    kind = connect("redis+cluster://host", reconnect=True)._make.func  # type: ignore[attr-defined]
    assert redis.ConnectionError in kind.ERRORS_ALLOW_RETRY
    assert redis.TimeoutError not in kind.ERRORS_ALLOW_RETRY


@pytest.mark.parametrize(("wanted", "limit"), [(16, 100), (200, 200)])
def test_many_threads_get_a_connection_each_if_the_pool_is_plain(wanted: int, limit: int) -> None:
    primary = connect("redis+sentinel://host/orders", max_connections=wanted)
    assert primary.connection_pool.max_connections == limit
    cluster: Any = connect("redis+cluster://host", max_connections=wanted)
    assert cluster._make.keywords["max_connections"] == limit


def test_a_queue_refuses_a_client_that_decodes_responses() -> None:
    client = redis.Redis(decode_responses=True)
    with pytest.raises(ValueError, match="must not have decode_responses"):
        DelayQueue(client, "a")
    client.close()
