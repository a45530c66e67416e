"""Clients are made without a server, and let go of without one."""

import asyncio
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import (
    SentinelManagedSSLConnection as AsyncSentinelManagedSSLConnection,
)
from redis.connection import SSLConnection
from redis.sentinel import SentinelManagedSSLConnection

from worker import AsyncDelayQueue, DelayQueue, connect, connect_async

nowhere = pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/orders/0",
        "redis+cluster://127.0.0.1:1",
    ],
)
Connect = Callable[[str], object]
either = pytest.mark.parametrize("connected", [connect, connect_async])


@nowhere
def test_a_client_that_never_connected_is_closed_in_silence(url: str) -> None:
    client = connect(url, timeout_seconds=0.1)
    client.close()
    with pytest.raises(redis.RedisError):
        client.ping()
    client.close()


@nowhere
def test_an_async_client_that_never_connected_closes_in_silence(url: str) -> None:
    async def use() -> None:
        async with connect_async(url, timeout_seconds=0.1) as client:
            with pytest.raises(redis.RedisError):
                await AsyncDelayQueue(client, "a").stats()

    asyncio.run(use())


@either
@pytest.mark.parametrize("separator", [" ", ",", ", "])
@pytest.mark.parametrize("url", ["redis://:secret@one:6379/0", "redis+cluster://one"])
def test_several_urls_are_refused(connected: Connect, url: str, separator: str) -> None:
    with pytest.raises(ValueError, match=r"several URLs: write one, of a Redis Cluster") as error:
        connected(f"{url}{separator}redis://two")
    assert "secret" not in str(error.value)


@either
def test_sentinels_without_a_service_are_refused(connected: Connect) -> None:
    with pytest.raises(ValueError, match="names a service"):
        connected("redis+sentinel://127.0.0.1:26379")


def test_a_cluster_is_let_go_of_like_any_other_client() -> None:
    with connect("redis+cluster://127.0.0.1:1", timeout_seconds=0.1) as client:
        assert isinstance(client.close, MethodType)


@pytest.mark.parametrize(
    ("connected", "of_primary", "of_sentinels"),
    [
        (connect, SentinelManagedSSLConnection, SSLConnection),
        (connect_async, AsyncSentinelManagedSSLConnection, redis.asyncio.SSLConnection),
    ],
)
def test_sentinels_may_have_ipv6_tls_and_their_own_password(
    connected: Callable[[str], Any], of_primary: type, of_sentinels: type
) -> None:
    hosts = "[::1]:26380,[fe80::2],sentinel"
    login = "sentinel_username=u&sentinel_password=p%40"
    pool = connected(f"rediss+sentinel://:secret@{hosts}/orders/2?{login}").connection_pool
    sentinels = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
    assert [(s["host"], s["port"]) for s in sentinels] == [
        ("::1", 26380),
        ("fe80::2", 26379),
        ("sentinel", 26379),
    ]
    assert {(s["username"], s["password"]) for s in sentinels} == {("u", "p@")}
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (2, "secret")
    assert pool.connection_class is of_primary
    for sentinel in pool.sentinel_manager.sentinels:
        assert sentinel.connection_pool.connection_class is of_sentinels


@pytest.mark.parametrize("url", ["redis://host", "redis+sentinel://host/orders"])
@pytest.mark.parametrize("reconnect", [False, True])
def test_an_async_client_has_the_settings_of_the_other(url: str, *, reconnect: bool) -> None:
    clients: list[Any] = [
        connect(url, reconnect=reconnect),
        connect_async(url, reconnect=reconnect),
    ]
    settings, of_async = (client.connection_pool.connection_kwargs for client in clients)
    retries = [each["retry"] for each in (settings, of_async)]
    assert [retry.get_retries() for retry in retries] == 2 * [int(reconnect)]
    assert [retry._supported_errors for retry in retries] == 2 * [(redis.ConnectionError,)]
    timeouts = [each.pop("socket_connect_timeout") for each in (settings, of_async)]
    assert timeouts == [0.5, 1.0]  # half a second is too much to ask of a busy event loop
    # What redis-py makes for each client.
    own = {"retry", "connection_pool", "himport_registry", "event_dispatcher"}
    assert {name: settings[name] for name in {*settings} - own} == {
        name: of_async[name] for name in {*settings} - own
    }


def test_an_async_cluster_repeats_nothing_after_a_timeout() -> None:
    cluster: Any = connect_async("rediss+cluster://host", reconnect=True, timeout_seconds=3)
    assert redis.TimeoutError not in cluster.ERRORS_ALLOW_RETRY
    assert cluster.retry.get_retries() == 1
    [node] = cluster.startup_nodes
    assert node.connection_class is redis.asyncio.SSLConnection
    assert (node.connection_kwargs["socket_timeout"], node.connection_kwargs["protocol"]) == (3, 2)


@pytest.mark.parametrize(("wanted", "limit"), [(16, 100), (200, 200)])
def test_many_threads_get_a_connection_each_if_the_pool_is_plain(wanted: int, limit: int) -> None:
    primary = connect("redis+sentinel://host/orders", max_connections=wanted)
    assert primary.connection_pool.max_connections == limit
    cluster: Any = connect("redis+cluster://host", max_connections=wanted)
    assert cluster._make.keywords["max_connections"] == limit


@either
def test_a_parameter_that_sentinels_do_not_have_is_refused(connected: Connect) -> None:
    with pytest.raises(ValueError, match="takes sentinel_username and sentinel_password"):
        connected("redis+sentinel://host/orders/0?socket_timeout=3")


def test_a_queue_refuses_a_client_that_decodes_responses() -> None:
    client = redis.Redis(decode_responses=True)
    with pytest.raises(ValueError, match="must not have decode_responses"):
        DelayQueue(client, "a")
    client.close()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1"])
def test_an_async_call_waits_for_a_connection_only_so_long(url: str) -> None:
    async def use() -> None:
        async with connect_async(url, timeout_seconds=0.01, max_connections=1) as client:
            taken: Any = client
            if "cluster" in url:
                await taken._free.acquire()
            else:
                taken.connection_pool.get_available_connection()
            with pytest.raises(redis.ConnectionError, match="No connection available"):
                await AsyncDelayQueue(client, "a").stats()

    asyncio.run(use())


@pytest.mark.parametrize(
    "client",
    [
        redis.asyncio.Redis(decode_responses=True),
        redis.asyncio.RedisCluster("host", decode_responses=True),
        connect_async("redis://host?decode_responses=True"),
        connect_async("redis+cluster://host?decode_responses=True"),
    ],
)
def test_an_async_queue_refuses_a_client_that_decodes_responses(client: Any) -> None:
    with pytest.raises(ValueError, match="must not have decode_responses"):
        AsyncDelayQueue(client, "a")


def test_an_async_queue_has_the_signatures_of_the_other() -> None:
    methods = [name for name in vars(AsyncDelayQueue) if not name.startswith("_")]
    assert methods == ["schedule", "schedule_many", "cancel", "cancel_many", "stats"]
    for name in methods:
        method = getattr(AsyncDelayQueue, name)
        assert inspect.iscoroutinefunction(method)
        assert inspect.signature(method) == inspect.signature(getattr(DelayQueue, name)), name


def test_no_cluster_client_sends_again_what_timed_out() -> None:
    made: Any = connect("redis+cluster://host", reconnect=True)
    asynchronous: Any = connect_async("redis+cluster://host")
    for kind in (made._make.func.__self__, asynchronous):
        assert redis.ConnectionError in kind.ERRORS_ALLOW_RETRY
        assert redis.TimeoutError not in kind.ERRORS_ALLOW_RETRY
