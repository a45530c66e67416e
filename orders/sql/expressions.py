"""Types and expressions that PostgreSQL and SQLite write differently.

With them the rest of the service runs the same statements on both.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement, GenericFunction

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Instant(sa.types.TypeDecorator[datetime]):
    """A moment in whole milliseconds: timestamptz, and on SQLite ms since the epoch."""

    impl = sa.TIMESTAMP(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        return sa.BigInteger() if dialect.name == "sqlite" else sa.TIMESTAMP(timezone=True)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "sqlite":
            return value
        return epoch_ms(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        # PostgreSQL's are aware, and in UTC by the session's time zone.
        return super().result_processor(dialect, coltype) if dialect.name == "sqlite" else None

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else EPOCH + timedelta(milliseconds=value)


class Id(sa.types.TypeDecorator[str]):
    """A UUID, which Python has as text: uuid, and on SQLite the text."""

    impl = sa.CHAR(36)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "sqlite":
            return sa.CHAR(36)
        return postgresql.UUID(as_uuid=False)


class IdList(sa.types.TypeDecorator[Sequence[str]]):
    """Many ids in one parameter, so that a batch of any size is one and the same statement.

    Sent as text: in an array, the driver would check each element for characters that need quotes.
    """

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> Any:
        if dialect.name == "sqlite":
            return json.dumps(value)
        return f"{{{','.join(value or ())}}}"


class each_id(GenericFunction[str]):  # noqa: N801  reads as SQL does
    """``each_id(parameter)``: each id of an `IdList`."""

    inherit_cache = True


class json_each_text(GenericFunction[Any]):  # noqa: N801
    """``json_each_text(mapping)``: each ``key`` and ``value``."""

    inherit_cache = True


class json_agg(GenericFunction[Any]):  # noqa: N801
    """``json_agg(column)``: its values as a list; of no rows None, or an empty list on SQLite."""

    type = sa.JSON()
    inherit_cache = True


class json_build_object(GenericFunction[Any]):  # noqa: N801
    """``json_build_object(name, value, ...)``"""

    type = sa.JSON()
    inherit_cache = True


ON_SQLITE = {
    "each_id": "json_each",
    "json_each_text": "json_each",
    "json_agg": "json_group_array",
    "json_build_object": "json_object",
}


@compiles(each_id)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return f"unnest(CAST({compiler.process(element.clauses, **kw)} AS uuid[]))"


@compiles(each_id, "sqlite")
@compiles(json_each_text, "sqlite")
@compiles(json_agg, "sqlite")
@compiles(json_build_object, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{ON_SQLITE[element.name]}({compiler.process(element.clauses, **kw)})"


def ids(parameter: str) -> sa.Select[Any]:
    """The ids in a parameter, an `IdList`."""
    each = each_id(sa.bindparam(parameter, type_=IdList()))
    return sa.select(each.table_valued(sa.column("value", Id), name="value").c.value)


class one_of(FunctionElement[bool]):  # noqa: N801  reads as SQL does
    """``one_of(column, query)``: the column is among the query's rows. An index on the column is used."""

    type = sa.Boolean()
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[str], query: Any) -> None:
        super().__init__(column, query.correlate(None).scalar_subquery())

    def self_group(self, against: Any = None) -> "one_of":  # noqa: ARG002
        return self  # as it is: with "IN (...) = 1" SQLite would not use its index


@compiles(one_of)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    column, query = (compiler.process(clause, **kw) for clause in element.clauses)
    # The query is evaluated once. A cast parameter is not a constant: as a filter it would be
    # parsed again for every row, and without statistics a planner may well filter.
    return f"{column} = ANY (ARRAY{query})"


@compiles(one_of, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    column, query = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} IN {query}"


class bytewise(FunctionElement[str]):  # noqa: N801  reads as SQL does
    """``bytewise(text)``: text that is compared byte by byte, whatever the database's locale."""

    type = sa.String()
    inherit_cache = True


@compiles(bytewise)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return f'{compiler.process(element.clauses, **kw)} COLLATE "C"'


@compiles(bytewise, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses, **kw)


def text_literal(value: str) -> sa.ColumnClause[str]:
    """A text that becomes part of the statement: one of ours, never from a request."""
    return sa.literal_column(f"'{value}'", sa.String)


class now(FunctionElement[datetime]):  # noqa: N801  reads as SQL does
    """The database's clock when the statement began, rounded down to milliseconds."""

    type = Instant()
    inherit_cache = True


@compiles(now)
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "date_trunc('milliseconds', statement_timestamp())"


@compiles(now, "sqlite")
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    # All 'now' of one statement are the same moment.
    seconds, millis = "strftime('%s', 'now')", "substr(strftime('%f', 'now'), 4)"
    return f"(CAST({seconds} AS INTEGER) * 1000 + CAST({millis} AS INTEGER))"


class clock(FunctionElement[datetime]):  # noqa: N801  reads as SQL does
    """The database's clock at this very moment, after all that the statement waited for."""

    type = Instant()
    inherit_cache = True


@compiles(clock)
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "date_trunc('milliseconds', clock_timestamp())"


@compiles(clock, "sqlite")
def _(_element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(now(), **kw)


class random_id(FunctionElement[str]):  # noqa: N801  reads as SQL does
    """A new UUID that nobody can guess."""

    type = Id()
    inherit_cache = True


@compiles(random_id)
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "gen_random_uuid()"


@compiles(random_id, "sqlite")
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    parts = " || '-' || ".join(f"hex(randomblob({size}))" for size in (4, 2, 2, 2, 6))
    return f"(lower({parts}))"


class read_only(FunctionElement[bool]):  # noqa: N801  reads as SQL does
    """Whether this server refuses to write."""

    type = sa.Boolean()
    inherit_cache = True


@compiles(read_only)
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "(current_setting('transaction_read_only') = 'on')"


@compiles(read_only, "sqlite")
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "0"  # there is no server to ask; a write would fail


class later(FunctionElement[datetime]):  # noqa: N801  reads as SQL does
    """``later(moment, ms)``: that many milliseconds after the moment; a column, or a parameter's name."""

    type = Instant()
    inherit_cache = True

    def __init__(self, moment: sa.ColumnElement[datetime], ms: str | sa.ColumnElement[int]) -> None:
        super().__init__(
            moment, sa.bindparam(ms, type_=sa.BigInteger()) if isinstance(ms, str) else ms
        )


@compiles(later)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, ms = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} + {ms} * interval '1 millisecond')"


@compiles(later, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, ms = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} + {ms})"


class ms_until(FunctionElement[int]):  # noqa: N801  reads as SQL does
    """``ms_until(moment)``: milliseconds from now, or from ``since``, to the moment; negative when it is past."""

    type = sa.BigInteger()
    inherit_cache = True

    def __init__(
        self, moment: sa.ColumnElement[datetime], since: sa.ColumnElement[datetime] | None = None
    ) -> None:
        super().__init__(moment, now() if since is None else since)


@compiles(ms_until)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, since = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"CAST(extract(epoch FROM {moment} - {since}) * 1000 AS bigint)"


@compiles(ms_until, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, since = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} - {since})"


class rfc3339_text(FunctionElement[str]):  # noqa: N801  reads as SQL does
    """``rfc3339_text(moment)``: the moment as `orders.http.schemas.types.rfc3339` writes it, for JSON."""

    type = sa.String()
    inherit_cache = True


@compiles(rfc3339_text)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment = compiler.process(element.clauses, **kw)
    return f"""to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""


@compiles(rfc3339_text, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment = compiler.process(element.clauses, **kw)
    to_the_second = f"strftime('%Y-%m-%dT%H:%M:%S', {moment} / 1000, 'unixepoch')"
    return f"({to_the_second} || printf('.%03dZ', {moment} % 1000))"


def epoch_ms(moment: datetime) -> int:
    """Whole milliseconds since the epoch."""
    return (moment - EPOCH) // timedelta(milliseconds=1)
