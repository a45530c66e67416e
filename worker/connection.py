"""How the engine talks to Redis: every setting on purpose."""

import functools
import threading
from typing import Any, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel


def connect(
    url: str,
    *,
    timeout_seconds: float = 1.0,
    reconnect: bool = False,
    max_connections: int = 16,
) -> redis.Redis:
    """A client for ``url``; nothing is sent before its first command.

    Beside ``redis://``, ``rediss://`` and ``unix://``, as redis-py has them, there are
    ``redis+sentinel://:password@host:26379,host:26379/service/0`` and
    ``redis+cluster://:password@host:6379``; with TLS, ``rediss+sentinel://`` and
    ``rediss+cluster://``. Sentinels that ask for a password of their own get the URL's
    ``?sentinel_password=`` and ``&sentinel_username=``.

    ``timeout_seconds`` bounds the wait for one reply; looking up a host's name is outside of
    it. ``reconnect`` sends a command once more when its connection turns out to be closed: only
    for what is safe to repeat.
    """
    settings: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        # The default lets a refused or silent host hold a caller for seconds.
        "socket_connect_timeout": min(0.5, timeout_seconds),
        # A command that timed out may have run. redis-py's default sends it up to ten times
        # more, and a claim sent twice leases a second batch to nobody: never after a timeout.
        "retry": Retry(NoBackoff(), int(reconnect), (redis.ConnectionError,)),
        # Finds a connection that a firewall dropped before a command is spent on it. Longer than the time
        # between two beats, so that these need no ping.
        "health_check_interval": 25,
        "socket_keepalive": True,
        # One wire protocol on every server from 6.2 on, without its push messages.
        "protocol": 2,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    scheme, _, rest = url.partition("://")
    protocol, _, topology = scheme.partition("+")
    if topology == "sentinel":
        return _behind_sentinels(url, {**settings, "ssl": protocol == "rediss"})
    if topology == "cluster":
        return cast("redis.Redis", _Cluster(f"{protocol}://{rest}", settings))
    # Threads wait for a connection; the plain pool raises when it is empty.
    pool = redis.BlockingConnectionPool.from_url(
        url, **settings, max_connections=max_connections, timeout=timeout_seconds
    )
    return redis.Redis.from_pool(pool)


def _behind_sentinels(url: str, settings: dict[str, Any]) -> redis.Redis:
    """A client of whichever server the sentinels call the primary."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("a redis+sentinel:// URL names a service after its hosts")
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]  # IPv6 stands in brackets
    login_there = {name.removeprefix("sentinel_"): value for name, value in parse_qsl(parts.query)}
    if not login_there.keys() <= {"username", "password"}:
        raise ValueError("a redis+sentinel:// URL takes sentinel_username and sentinel_password")
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        [(address.hostname, address.port or 26379) for address in addresses],
        sentinel_kwargs={**settings, **login_there},
    )
    primary = sentinel.master_for(
        service,
        **settings,
        db=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
    )
    return cast("redis.Redis", primary)


class _Cluster:
    """A RedisCluster made on first use, since making one connects; all its errors RedisErrors."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self._make = functools.partial(RedisCluster.from_url, url, **settings)
        self._lock = threading.Lock()
        self._client: RedisCluster | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                with self._lock:
                    self._client = self._client or self._make()
                return getattr(self._client, name)(*args, **kwargs)
            except RedisClusterException as error:
                raise redis.ConnectionError(str(error)) from error

        return call
