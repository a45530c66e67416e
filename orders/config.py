"""The environment's settings, validated once and frozen. Those of a feature are in its ``settings.py``."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from orders.errors import SettingsInvalid
from orders.feature import features

T = TypeVar("T")

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

    @property
    def of_each_flow(self) -> dict[str, Any]:
        """The settings that all flows of the service have in common."""
        names = ("lease_seconds", "sweep_seconds", "lookahead_seconds")
        return {name: getattr(self, name) for name in (*names, "max_failures", "max_deliveries")}

    #: Those of features, by their types.
    more: Mapping[type, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, kind: type[T]) -> T:
        """The settings of a feature, such as ``settings[WebhookSettings]``."""
        found: T = self.more[kind] if kind in self.more else kind()
        return found

    @classmethod
    def of(cls, **values: Any) -> "Settings":
        """The settings with these values, each by its name, whichever feature it belongs to."""
        kinds = variables()
        given = defaultdict[type, dict[str, Any]](dict)
        for name, value in values.items():
            given[kinds[name]][name] = value
        own = given.pop(cls)
        return cls(**own, more={kind: kind(**named) for kind, named in given.items()})

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Read and validate. Raises SettingsInvalid, which names everything that is wrong."""
        given = defaultdict[type, dict[str, str]](dict)
        for name, kind in variables().items():
            if text := environ.get(name.upper(), "").strip():
                given[kind][name] = text
        read, problems = dict[type, Any](), list[str]()
        for kind in {cls, *given}:
            try:
                read[kind] = TypeAdapter(kind).validate_python(given[kind])
            except ValidationError as error:  # whose text has all values, secrets too
                problems += map(_problem, error.errors())
        if problems:
            raise SettingsInvalid("; ".join(sorted(problems)))
        own = read.pop(cls)
        settings = _fitting_defaults(replace(own, more=read), given[cls].keys())
        if problems := [*_contradictions(settings)]:
            raise SettingsInvalid("; ".join(problems))
        return settings


def variables() -> dict[str, type[Any]]:
    """The name of each setting, and the class that has it."""
    kinds = (Settings, *(kind for each in features() for kind in each.settings))
    return {each.name: kind for kind in kinds for each in fields(kind) if each.name != "more"}


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
    }
    return replace(
        settings, **{name: value for name, value in derived.items() if name not in names}
    )


#: What must hold of the settings.
RULES = (
    "ORDER_TIMEOUT_MIN_SECONDS <= ORDER_TIMEOUT_SECONDS <= ORDER_TIMEOUT_MAX_SECONDS",
    "LOCK_TIMEOUT_SECONDS <= STATEMENT_TIMEOUT_SECONDS < LEASE_SECONDS",
    "RETRY_BASE_SECONDS <= RETRY_CAP_SECONDS",
)


def _contradictions(settings: Settings) -> Iterator[str]:
    for rule in RULES:
        first, *others = rule.split()
        least = getattr(settings, first.lower())
        holds, filled = True, f"{least:g}"
        for sign, name in zip(others[::2], others[1::2], strict=True):
            value = getattr(settings, name.lower())
            holds = holds and (least < value or (sign == "<=" and least == value))
            least, filled = value, f"{filled} {sign} {value:g}"
        if not holds:
            yield f"this must hold: {rule}, not {filled}"
