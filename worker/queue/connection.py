"""How the engine connects to Redis: every setting is chosen on purpose."""

import functools
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import hiredis
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

    It is ``redis://user:password@host:6379/0``,
    ``redis+sentinel://:password@host:26379,host:26379/service/0`` or
    ``redis+cluster://:password@host:6379``; with TLS, ``rediss``. After a ``?`` there may be parameters of `TLS`
    and, for sentinels with a password of their own, of `SENTINELS`.

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
    parts = _parts(url)
    limit = max(LEAST_WITHOUT_WAITING, max_connections)
    settings |= {name: parts[name] for name in TLS if name in parts}
    if parts["sentinel"]:
        return _behind_sentinels(parts, settings, limit)
    [(host, port)] = _addresses(parts, 6379)
    settings |= {"host": host, "port": port, **_login(parts)}
    if parts["cluster"]:
        settings |= {"ssl": bool(parts["tls"]), "max_connections": limit}
        return cast("redis.Redis", _Cluster(settings))
    # Threads wait for a connection; the plain pool raises when it is empty.
    pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
        connection_class=redis.SSLConnection if parts["tls"] else redis.Connection,
        db=int(parts["database"] or 0),
        **settings,
        max_connections=max_connections,
        timeout=timeout_seconds,
    )
    return redis.Redis.from_pool(pool)


#: The parameters of a URL with TLS, and of one with sentinels.
TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
SENTINELS = ("sentinel_username", "sentinel_password")
#: None of these quotes the URL, because that may contain a password.
MALFORMED = (
    "this is not a Redis URL: write redis://:password@host:6379/0, redis+cluster://:password@host:6379 "
    "or redis+sentinel://:password@host:26379,host:26379/service/0, "
    "with special characters in the password percent-encoded"
)
SEVERAL = "these are several URLs: write one, of a Redis Cluster if one server is not enough"
PARAMETERS = (
    f"the parameters of a Redis URL are, with rediss, {', '.join(TLS)} (none or required), "
    f"and with sentinels {' and '.join(SENTINELS)}"
)
#: The whole of a URL: redis-py ignores what it does not understand, and uses database 0.
URL = re.compile(
    r"redis(?P<tls>s?)(\+((?P<sentinel>sentinel)|(?P<cluster>cluster)))?://"
    r"((?P<username>[^:@/?#]*)(:(?P<password>[^/?#]*))?@)?"
    r"(?P<hosts>[^@/?#,\s]+(?(sentinel)(,[^@/?#,\s]+)*))"
    r"(?(sentinel)/(?P<service>[^/?#]+))"
    r"(/(?P<database>(?(cluster)0?|[0-9]*)))?"
    r"(\?(?P<parameters>[^#]*))?"
)


def _parts(url: str) -> dict[str, str]:
    """The parts of a URL and its parameters. Raises ValueError for anything but one Redis URL."""
    url = url.strip()  # a secret read from a file ends with a line break
    if re.search(r"[\s,][a-z+]+://", url):
        raise ValueError(SEVERAL)
    if (found := URL.fullmatch(url)) is None:
        raise ValueError(MALFORMED)
    parts = found.groupdict("")
    known = {*(TLS if parts["tls"] else ()), *(SENTINELS if parts["sentinel"] else ())}
    given = dict(parse_qsl(parts["parameters"], keep_blank_values=True))
    if not given.keys() <= known or given.get("ssl_cert_reqs", "none") not in ("none", "required"):
        raise ValueError(PARAMETERS)
    return {**parts, **given}


def _addresses(parts: Mapping[str, str], port: int) -> list[tuple[str, int]]:
    """The hosts, with their ports or this one. Raises ValueError."""
    try:
        found = [urlsplit(f"//{host}") for host in parts["hosts"].split(",")]  # [::1]:26379, too
        return [(each.hostname or "", each.port or port) for each in found]
    except ValueError:
        raise ValueError(MALFORMED) from None  # that error quotes the URL


def _login(parts: Mapping[str, str]) -> dict[str, str | None]:
    return {name: unquote(parts[name]) or None for name in ("username", "password")}


def _behind_sentinels(
    parts: Mapping[str, str], settings: dict[str, Any], max_connections: int
) -> redis.Redis:
    """A client of the primary that the sentinels name."""
    settings = {**settings, "ssl": bool(parts["tls"])}
    login = {name.removeprefix("sentinel_"): parts[name] for name in SENTINELS if name in parts}
    sentinels: Any = Sentinel(  # type: ignore[no-untyped-call]
        _addresses(parts, 26379), sentinel_kwargs={**settings, **login}
    )
    primary: redis.Redis = sentinels.master_for(
        parts["service"],
        **settings,
        **_login(parts),
        max_connections=max_connections,
        db=int(parts["database"] or 0),
    )
    return primary


class Line(threading.local):
    """Each thread's own connection to one server, on which a call costs a third of what it costs on a client.

    A thread has it while a block of `opened` runs; in a cluster none has.
    """

    is_open = False
    _connection: Any = None

    def __init__(self, client: Any) -> None:
        self._pool: Any = client.connection_pool if isinstance(client, redis.Redis) else None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have this thread keep its connection until the block ends."""
        self.is_open = self._pool is not None
        try:
            yield
        finally:
            self.is_open = False
            if self._connection is not None:
                self._pool.release(self._connection)
                self._connection = None

    def send(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands together; return each one's reply, or the RedisError in its place."""
        replies = list[Any]()
        try:
            connection = self._ready()
            connection.send_packed_command([b"".join(map(hiredis.pack_command, commands))])
            while len(replies) < len(commands):
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
        except redis.RedisError as error:
            replies += [error] * (len(commands) - len(replies))
        return replies

    def _ready(self) -> Any:
        """The connection; it connects again if the server has closed it, or has sent a reply that nobody waits for."""
        connection = self._connection = self._connection or self._pool.get_connection()
        try:
            if connection.is_connected and connection.can_read():
                connection.disconnect()
        except redis.RedisError:
            connection.disconnect()
        connection.connect()  # which asks the sentinels, if there are any
        return connection


#: `RETRIED`, and the errors of a cluster during a failover.
CLUSTER_RETRIED = (*RETRIED, ClusterDownError, SlotNotCoveredError)


class _RedisCluster(RedisCluster):
    ERRORS_ALLOW_RETRY = CLUSTER_RETRIED  # type: ignore[assignment]  # typed as redis-py's own four


class _Cluster:
    """A RedisCluster that is made on first use, because making it connects. All its errors are RedisErrors."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._make = functools.partial(_RedisCluster, **settings)
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
