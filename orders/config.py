"""The environment's settings, validated once and frozen."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from orders.errors import SettingsInvalid

#: How many arguments a Lua script can unpack.
MAX_BATCH_SIZE = 2000
#: The longest body that is read: of a request, and of an endpoint's or a provider's response.
MAX_BODY_BYTES = 16 * 1024
#: What to do about a URL that is missing or malformed.
DATABASE_URLS = (
    "set it to postgresql+psycopg://user:password@host/name, "
    "with special characters in the password percent-encoded"
)
REDIS_URLS = "set it to redis://:password@host:6379/0"
EXAMPLES = {"database_url": DATABASE_URLS, "redis_url": REDIS_URLS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field for each environment variable, which has the field's name in capitals."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    #: ``postgresql+psycopg://user:password@host/name``
    database_url: str = field(repr=False)
    #: ``redis://:password@host:6379/0``
    redis_url: str = field(repr=False)
    #: How long an order may stay unpaid: the default, and the bounds on what a request may ask for.
    order_timeout_seconds: Annotated[float, Field(ge=0.001)] = 1800.0
    order_timeout_min_seconds: Annotated[float, Field(ge=0.001)] = 1.0
    order_timeout_max_seconds: Annotated[float, Field(ge=0.001)] = 86_400.0
    #: How long payments under way keep an order beyond its deadline, all together.
    attempts_at_most_seconds: Annotated[float, Field(ge=0)] = 1800.0
    #: What one client may reserve without paying: unpaid orders, and the pieces in them. 0 is no limit.
    max_unpaid_orders: Annotated[int, Field(ge=0)] = 10_000
    max_held_pieces: Annotated[int, Field(ge=0)] = 100_000
    #: How soon another worker takes over from a dead one. Must be longer than any statement may
    #: run.
    lease_seconds: Annotated[float, Field(ge=0.1)] = 10.0
    sweep_seconds: Annotated[float, Field(ge=0.01)] = 1.0
    lookahead_seconds: Annotated[float, Field(ge=0.01)] = 30.0
    #: Orders in one claim, one transaction and one ack.
    batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)] = 500
    #: After how many failures, or deaths of its worker, a check becomes a dead letter.
    max_failures: Annotated[int, Field(ge=1)] = 5
    max_deliveries: Annotated[int, Field(ge=3)] = 5
    retry_base_seconds: Annotated[float, Field(ge=0.001)] = 1.0
    retry_cap_seconds: Annotated[float, Field(ge=0.001)] = 60.0
    #: SQL connections of one process. An API process needs no more threads than these.
    database_pool_size: Annotated[int, Field(ge=1)] = 10
    #: Whether DATABASE_URL leads to a pooler in transaction mode, such as PgBouncer.
    database_pooler: bool = False
    statement_timeout_seconds: Annotated[float, Field(ge=0.1)] = 4.0
    lock_timeout_seconds: Annotated[float, Field(ge=0.1)] = 2.0
    #: Requests of one API key to one process, on average and at once.
    rate_limit_per_second: Annotated[int, Field(ge=1)] = 1000
    rate_limit_burst: Annotated[int, Field(ge=1)] = 1000
    #: How many reverse proxies add a client's address to X-Forwarded-For. Without one, a client
    #: could choose its address.
    trusted_proxies: Annotated[int, Field(ge=0)] = 0
    #: How long sending a webhook may take in all, and how many a worker sends at a time; half of them may hang.
    webhook_timeout_seconds: Annotated[float, Field(ge=0.1)] = 5.0
    webhook_threads: Annotated[int, Field(ge=2)] = 8
    #: How long before an order's deadline `order.expiring` is sent; 0: never.
    webhook_expiring_minutes: Annotated[float, Field(ge=0)] = 0.0
    #: How long delivered and dead webhooks are kept; 0: forever.
    webhook_keep_days: Annotated[int, Field(ge=0)] = 30
    #: How long orders are kept once nothing is to be done for them, 0: forever; and how many are deleted
    #: per second at most.
    retention_days: Annotated[int, Field(ge=0, le=36_500)] = 0
    retention_per_second: Annotated[int, Field(ge=1, le=10_000)] = 100
    #: Whether webhooks may go to private addresses and any port, as on a developer's machine.
    webhook_allow_private: bool = False
    #: What makes a worker stop cancelling by itself, 0 never: how long no API process has served, how far
    #: the database's clock jumped.
    door_freeze_after_seconds: Annotated[float, Field(ge=0)] = 5.0
    clock_freeze_jump_seconds: Annotated[float, Field(ge=0)] = 2.0
    #: For how long, unless the cause is gone or a person thaws before.
    freeze_at_most_seconds: Annotated[float, Field(ge=1, le=86_400)] = 3600.0
    #: Where the API and the worker serve /metrics; None: nowhere.
    metrics_port: Annotated[int | None, Field(ge=1, le=65_535)] = None
    metrics_host: str = "127.0.0.1"
    #: Where the API's processes share their counts; empty: a directory under /tmp, named after the
    #: port.
    metrics_dir: str = ""

    @property
    def of_each_flow(self) -> dict[str, Any]:
        """The settings that all flows of the service have in common."""
        names = ("lease_seconds", "sweep_seconds", "lookahead_seconds")
        return {name: getattr(self, name) for name in (*names, "max_failures", "max_deliveries")}

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Read and validate. Raises SettingsInvalid, which names everything that is wrong."""
        given = {
            setting.name: text
            for setting in fields(cls)
            if (text := environ.get(setting.name.upper(), "").strip())
        }
        try:
            settings = TypeAdapter(cls).validate_python(given)
        except ValidationError as error:  # whose text has all values, secrets too
            raise SettingsInvalid("; ".join(map(_problem, error.errors()))) from None
        settings = _fitting_defaults(settings, given.keys())
        if problems := _contradictions(settings):
            raise SettingsInvalid("; ".join(problems))
        return settings


def _problem(error: ErrorDetails) -> str:
    """What is wrong with a setting. Here any text is a valid URL, so no password is shown."""
    name = str(error["loc"][0])
    if error["type"] == "missing":
        return f"{name.upper()} is not set: {EXAMPLES[name]}"
    return f"{name.upper()} is {error['input']!r}: {error['msg']}"


def _fitting_defaults(settings: Settings, names: Collection[str]) -> Settings:
    """Defaults that fit what was set: a short lease needs shorter timeouts."""
    least, most = settings.order_timeout_min_seconds, settings.order_timeout_max_seconds
    timeout, statement = settings.order_timeout_seconds, settings.statement_timeout_seconds
    if "order_timeout_seconds" not in names:
        timeout = max(least, min(timeout, most))
    if "statement_timeout_seconds" not in names:
        statement = min(statement, 0.8 * settings.lease_seconds)
    derived: dict[str, Any] = {
        "order_timeout_seconds": timeout,
        "order_timeout_min_seconds": min(least, timeout),
        "order_timeout_max_seconds": max(most, timeout),
        "statement_timeout_seconds": statement,
        "lock_timeout_seconds": min(settings.lock_timeout_seconds, statement / 2),
        "retry_cap_seconds": max(settings.retry_cap_seconds, settings.retry_base_seconds),
        "rate_limit_burst": settings.rate_limit_per_second,
    }
    return replace(
        settings, **{name: value for name, value in derived.items() if name not in names}
    )


def _contradictions(settings: Settings) -> list[str]:
    checks = [
        (
            settings.order_timeout_min_seconds
            <= settings.order_timeout_seconds
            <= settings.order_timeout_max_seconds,
            "ORDER_TIMEOUT_MIN_SECONDS <= ORDER_TIMEOUT_SECONDS <= ORDER_TIMEOUT_MAX_SECONDS",
        ),
        (
            settings.lock_timeout_seconds
            <= settings.statement_timeout_seconds
            < settings.lease_seconds,
            "LOCK_TIMEOUT_SECONDS <= STATEMENT_TIMEOUT_SECONDS < LEASE_SECONDS",
        ),
        (
            settings.retry_base_seconds <= settings.retry_cap_seconds,
            "RETRY_BASE_SECONDS <= RETRY_CAP_SECONDS",
        ),
    ]
    if not settings.database_url.startswith("postgresql"):
        return [f"DATABASE_URL names no supported database: {DATABASE_URLS}"]
    return [
        f"this must hold: {rule}, not {_filled(rule, settings)}"
        for holds, rule in checks
        if not holds
    ]


def _filled(rule: str, settings: Settings) -> str:
    """A rule with the values in place of the settings' names."""
    return re.sub(r"[A-Z_]{2,}", lambda name: f"{getattr(settings, name[0].lower()):g}", rule)
