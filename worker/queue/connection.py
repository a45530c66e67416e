"""How the engine connects to Redis: every setting is chosen on purpose."""

import functools
import re
import threading
from typing import Any, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ClusterDownError, RedisClusterException, SlotNotCoveredError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel

#: Commands are not retried after a timeout, because they may have run: a claim that is sent twice leases a
#: second batch to nobody. By default redis-py sends a command up to ten more times.
RETRIED = (redis.ConnectionError,)
#: The lowest limit on connections where redis-py's pools raise at the limit instead of waiting: its own default.
LEAST_WITHOUT_WAITING = 100


def connect(
    url: str,
    *,
    timeout_seconds: float = 1.0,
    reconnect: bool = False,
    max_connections: int = 16,
) -> redis.Redis:
    """A client for ``url``. Nothing is sent before its first command.

    Besides redis-py's ``redis://``, ``rediss://`` and ``unix://``, these URLs work:
    ``redis+sentinel://:password@host:26379,host:26379/service/0`` and
    ``redis+cluster://:password@host:6379``; with TLS, ``rediss+sentinel://`` and
    ``rediss+cluster://``. For sentinels with a password of their own, add
    ``?sentinel_password=`` and ``&sentinel_username=``.

    ``timeout_seconds`` limits the wait for one reply, but not DNS lookups. With ``reconnect``, a command
    is sent once more if its connection turns out to be closed, so use it only for commands that are safe to
    repeat.

    One server gets up to ``max_connections`` connections, for which threads wait. Behind sentinels and in a
    cluster threads do not wait, but raise `redis.ConnectionError`, so there the limit is at least 100.

    Raises ValueError for anything but one Redis URL.
    """
    settings: dict[str, Any] = {
        "retry": Retry(NoBackoff(), int(reconnect), RETRIED),
        "socket_timeout": timeout_seconds,
        # By default a host that refuses or does not answer holds the caller for seconds.
        "socket_connect_timeout": min(0.5, timeout_seconds),
        # Detects a connection that a firewall dropped, before a command is lost on it. Longer than the
        # interval between heartbeats, so that these need no ping.
        "health_check_interval": 25,
        "socket_keepalive": True,
        # The same wire protocol on every server from 6.2 on, without push messages.
        "protocol": 2,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    topology, plain = _topology(url)
    limit = max(LEAST_WITHOUT_WAITING, max_connections)
    if topology == "sentinel":
        return _behind_sentinels(url, settings, limit)
    if topology == "cluster":
        return cast("redis.Redis", _Cluster(plain, {**settings, "max_connections": limit}))
    # Threads wait for a connection; the plain pool raises when it is empty.
    pool = redis.BlockingConnectionPool.from_url(
        url, **settings, max_connections=max_connections, timeout=timeout_seconds
    )
    return redis.Redis.from_pool(pool)


#: Neither quotes the URL, because that may contain a password.
MALFORMED = (
    "this is not a Redis URL: write redis://:password@host:6379/0, "
    "with special characters in the password percent-encoded"
)
SEVERAL = "these are several URLs: write one, of a Redis Cluster if one server is not enough"
PROTOCOLS = ("redis", "rediss", "unix")
TOPOLOGIES = ("", "sentinel", "cluster")


def _topology(url: str) -> tuple[str, str]:
    """Split a URL into its topology, which is "sentinel", "cluster" or "" for one server, and the rest.

    Raises ValueError for anything but one Redis URL.
    """
    if re.search(r"[\s,][a-z+]+://", url):
        raise ValueError(SEVERAL)
    scheme, separator, rest = url.partition("://")
    protocol, _, topology = scheme.partition("+")
    plain = f"{protocol}://{rest}"
    if protocol not in PROTOCOLS or topology not in TOPOLOGIES or not separator:
        raise ValueError(MALFORMED)
    try:
        hosts = urlsplit(plain).netloc.rpartition("@")[2]
        for host in hosts.split(",") if topology == "sentinel" else [hosts]:
            _ = urlsplit(f"//{host}").port
    except ValueError:
        raise ValueError(MALFORMED) from None  # that error quotes the URL
    return topology, plain


def _behind_sentinels(url: str, settings: dict[str, Any], max_connections: int) -> redis.Redis:
    """A client of the primary that the sentinels name."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("a redis+sentinel:// URL names a service after its hosts")
    if database and not (database.isascii() and database.isdecimal()):
        raise ValueError(MALFORMED)
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]  # splits [::1]:26379, too
    login_there = {name.removeprefix("sentinel_"): value for name, value in parse_qsl(parts.query)}
    if not login_there.keys() <= {"username", "password"}:
        raise ValueError("a redis+sentinel:// URL takes sentinel_username and sentinel_password")
    settings = {**settings, "ssl": parts.scheme.startswith("rediss")}
    sentinels: Any = Sentinel(  # type: ignore[no-untyped-call]
        [(address.hostname, address.port or 26379) for address in addresses],
        sentinel_kwargs={**settings, **login_there},
    )
    primary: redis.Redis = sentinels.master_for(
        service,
        **settings,
        max_connections=max_connections,
        db=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
    )
    return primary


#: `RETRIED`, and the errors of a cluster during a failover.
CLUSTER_RETRIED = (*RETRIED, ClusterDownError, SlotNotCoveredError)


class _RedisCluster(RedisCluster):
    ERRORS_ALLOW_RETRY = CLUSTER_RETRIED  # type: ignore[assignment]  # typed as redis-py's own four


class _Cluster:
    """A RedisCluster that is made on first use, because making it connects. All its errors are RedisErrors."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self._make = functools.partial(_RedisCluster.from_url, url, **settings)
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
