"""Checks of the Redis or Valkey server: version, role, memory, persistence, permissions, clock."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import redis

from ..findings import Finding, clock_finding, failure, ok, warning
from ..queue.delay_queue import DelayQueue
from ..queue.operator_side import may_evict

#: The scripts need this version.
OLDEST_VERSION = (6, 2)
#: Memory in use that is worth a warning, as a fraction of ``maxmemory``.
NEARLY_FULL = 0.8

Info = Mapping[str, Any]


def server_findings(
    client: redis.Redis, queues: Sequence[DelayQueue], clock: Callable[[], float]
) -> Iterator[Finding]:
    """Everything about the server. Raises redis.RedisError."""
    try:
        info: Any = client.info()
    except redis.ResponseError as error:
        yield warning(
            "redis.info",
            f"INFO was refused ({error}): version, role, eviction, memory and persistence are unknown",
            "Give this user +info: it reads no data.",
        )
    else:
        for check in (_version, _role, _eviction, _memory, _persistence):
            yield from check(info)
    for queue in queues:
        yield _rights(client, queue)
    before = clock()
    reply: Any = client.time()
    seconds, micros = reply
    offset = seconds + micros / 1_000_000 - (before + clock()) / 2
    yield clock_finding("redis.clock", "Redis", offset)


def _version(info: Info) -> Iterator[Finding]:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    text = str(info.get("valkey_version") or info.get("redis_version") or "")
    # Valkey reports the version of Redis that it is compatible with.
    compatible = str(info.get("redis_version", "0"))
    version = tuple(int(part) if part.isdigit() else 0 for part in compatible.split(".")[:2])
    if version < OLDEST_VERSION:
        advice = "Use Redis 6.2 or later, or Valkey."
        yield failure("redis.version", f"{name} {text or 'of an unknown version'}", advice)
    else:
        yield ok("redis.version", f"{name} {text}")


def _role(info: Info) -> Iterator[Finding]:
    if info.get("role") == "master":
        yield ok("redis.role", "a primary")
    elif "role" in info:
        advice = "Point REDIS_URL at the primary; a redis+sentinel:// URL always finds it."
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        yield failure("redis.role", f"a replica of {primary}, which takes no writes", advice)


def _eviction(info: Info) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy")
    if policy is None:
        advice = "Ask whoever runs the server: it must be noeviction."
        yield warning("redis.eviction", "the server does not report its maxmemory-policy", advice)
    elif may_evict(policy):
        summary = f"maxmemory-policy is {policy}: Redis may delete whole queues, and workers do not use it"
        advice = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file."
        yield failure("redis.eviction", summary, advice)
    else:
        yield ok("redis.eviction", f"maxmemory-policy is {policy}")


def _memory(info: Info) -> Iterator[Finding]:
    limit = int(info.get("maxmemory") or 0)
    used = int(info.get("used_memory") or 0) - int(info.get("mem_not_counted_for_evict") or 0)
    text = f"{_mb(used)} of {_mb(limit)} used" if limit else f"{_mb(used)} used, without a limit"
    if limit and used >= limit:
        advice = "It refuses new tasks; existing ones are still handled. Raise maxmemory, or purge dead letters."
        yield failure("redis.memory", f"full: {text}", advice)
    elif limit and used > NEARLY_FULL * limit:
        yield warning("redis.memory", text, "Raise maxmemory before it is full.")
    else:
        yield ok("redis.memory", text)


def _persistence(info: Info) -> Iterator[Finding]:
    on_disk = {"aof_last_write_status": "writing the AOF", "rdb_last_bgsave_status": "saving"}
    failed = [what for name, what in on_disk.items() if info.get(name, "ok") != "ok"]
    if failed:
        advice = (
            "See its log: usually the disk is full. Until this is fixed it may refuse all writes."
        )
        yield failure("redis.persistence", f"{' and '.join(failed)} failed", advice)
    elif "aof_enabled" in info and not info["aof_enabled"]:
        summary = "appendonly is off: a crash loses everything since the last save"
        advice = "Set appendonly yes. A flow with a sweep restores what is lost; other flows lose it for good."
        yield warning("redis.persistence", summary, advice)
    else:
        yield ok("redis.persistence", "AOF on")


def _rights(client: redis.Redis, queue: DelayQueue) -> Finding:
    """Whether this user may use the queue's keys and channel. The commands sent change nothing."""
    check, pattern = "redis.rights", f"{{{queue.name}}}:*"
    try:
        queue.stats()
        client.zrem(queue.keys.scheduled, "")  # removes nothing, because no id is empty
    except redis.exceptions.NoPermissionError as error:
        advice = f"In its ACL, give this user ~{pattern} with +@all -@dangerous +info."
        return failure(check, f"no permission for the keys {pattern}: {error}", advice)
    except redis.ResponseError as error:  # read-only, too few replicas, the disk is full, WRONGTYPE
        advice = "Nothing can be claimed until it accepts writes. See its log, and check whether a failover is under way."
        return failure(
            "redis.writes", f"refuses to write the keys of {queue.name}: {error}", advice
        )
    try:
        client.publish(queue.keys.channel, b"")
    except redis.exceptions.NoPermissionError:
        summary = f"no permission for the channel {queue.keys.channel}: workers are not woken, so new tasks may start seconds late"
        return warning(check, summary, f"In its ACL, give this user &{pattern}.")
    return ok(check, f"may use the keys and the channel of {queue.name}")


def _mb(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
