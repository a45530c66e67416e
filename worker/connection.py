"""How the engine talks to Redis: every setting on purpose."""

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry


def connect(
    url: str,
    *,
    timeout_seconds: float = 1.0,
    reconnect: bool = False,
    max_connections: int = 16,
) -> redis.Redis:
    """A client for ``url``; nothing is sent before its first command.

    ``timeout_seconds`` bounds the wait for one reply. ``reconnect`` sends a command once
    more when its connection turns out to be closed: only for what is safe to repeat.
    """
    settings: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        # The default lets a refused or silent host hold a caller for seconds.
        "socket_connect_timeout": min(0.5, timeout_seconds),
        # A command that timed out may have run. redis-py's default sends it up to ten times
        # more, and a claim sent twice leases a second batch to nobody: never after a timeout.
        "retry": Retry(NoBackoff(), int(reconnect), (redis.ConnectionError,)),
        # Finds a connection that a firewall dropped before a command is spent on it.
        "health_check_interval": 15,
        "socket_keepalive": True,
        # One wire protocol on every server from 6.2 on, without its push messages.
        "protocol": 2,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        # Threads wait for a connection; the plain pool raises when it is empty.
        "max_connections": max_connections,
        "timeout": timeout_seconds,
    }
    pool = redis.BlockingConnectionPool.from_url(url, **settings)
    return redis.Redis.from_pool(pool)
