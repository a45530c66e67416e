"""What the service knows about its own health: SQL, its schema, stock and orders that add up.

Reads only, a bounded part of the tables, each statement within the statement timeout.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from orders.db.base import metadata
from orders.db.database import reading, writing
from orders.db.files import Room
from orders.db.schema import check_fit, check_schema, read_state, schema_version, try_disk
from orders.errors import SchemaOutdated, StorageUnavailable, StorageUnfit
from orders.feature import features
from worker import Finding
from worker.findings import clock_finding, failure, ok, warning

SQL = Room("orders.features.doctor")
#: How many problems of a kind are told.
NAMED = 5
# Adds to what is reserved of one SKU what is missing from it, while everything runs: orders that are placed
# and end meanwhile change both sides alike. By how much it is wrong is read from one snapshot, the
# statement's, and added to the row as it is once it is locked.
MEND_STOCK = (
    "UPDATE stock_items SET reserved = reserved"
    " + (SELECT coalesce(sum(quantity), 0) FROM order_items JOIN unpaid_orders USING (order_id) WHERE sku = '{sku}')"
    " - (SELECT reserved FROM stock_items WHERE sku = '{sku}')"
    " WHERE sku = '{sku}';"
)
#: The oldest that is supported.
OLDEST_POSTGRESQL = 140_000
#: How many unpaid orders' items are added up, how many SKUs they are compared with, and how many of
#: the newest orders are checked.
MOST_UNPAID, MOST_SKUS, NEWEST = 20_000, 20_000, 1000


class Doctor:
    """Examines the database. ``clock`` is this host's, in seconds since the epoch; ``session`` is what
    each session's settings should be.
    """

    def __init__(
        self,
        engine: sa.Engine,
        clock: Callable[[], float] = time.time,
        session: Mapping[str, str] | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._session = session or {}

    def examine(self) -> Iterator[Finding]:
        """Each finding as it is made."""
        try:
            before = self._clock()
            with reading(self._engine) as connection:
                server = SQL.get_server(connection).one()
            middle = (before + self._clock()) / 2
        except StorageUnavailable as error:
            advice = (
                "Check DATABASE_URL, the network and the server. What is overdue meanwhile is cancelled "
                "as soon as it is back."
            )
            yield failure("sql.answers", f"the database does not answer: {error}", advice)
            return
        yield _version(server)
        yield self._bounded("sql.settings", self._settings)
        yield self._writes(server)
        yield clock_finding("sql.clock", "SQL", server.clock - middle)
        schema = self._schema()
        yield schema
        if schema.advice:
            return  # the other statements may not fit
        for check, name in (
            (_fit, "sql.fit"),
            (_indexes, "sql.indexes"),
            (_stock, "orders.stock"),
            (_orders, "orders.history"),
            *(found for feature in features() for found in feature.checks),
        ):
            yield self._bounded(name, check)

    def _settings(self, sql: sa.Connection) -> Finding:
        wrong = SQL.list_wrong_settings(sql, wanted=json.dumps(self._session)).all()
        if not wrong:
            return ok("sql.settings", "as they should be")
        advice = "Run this as the role's owner, and reconnect the pooler: " + " ".join(
            each.remedy for each in wrong
        )
        summary = ", ".join(f"{each.name} is not {each.value}" for each in wrong)
        return failure("sql.settings", summary, advice)

    def _writes(self, server: sa.Row[Any]) -> Finding:
        if server.read_only:
            advice = (
                "It is a standby, or default_transaction_read_only is on. Point DATABASE_URL at the "
                "primary, with target_session_attrs=read-write for all hosts."
            )
            return failure("sql.writes", "the database is read-only", advice)
        try:
            with writing(self._engine) as connection:
                try_disk(connection)
        except StorageUnavailable as error:
            advice = (
                "Most likely its disk is full: free some space, and look into the server's log."
            )
            return failure("sql.writes", f"the database cannot write: {error}", advice)
        return ok("sql.writes", "takes writes")

    def _schema(self) -> Finding:
        check, revision = "sql.schema", ""
        try:
            with reading(self._engine) as connection:
                revision = read_state(connection).revision
                check_schema(connection, revision)
        except SchemaOutdated as error:
            summary = f"revision {revision or 'none'}, not {schema_version()}: nothing is served"
            return failure(check, summary, str(error))
        except (StorageUnavailable, sa.exc.DBAPIError) as error:
            return failure(check, f"not known: {error}", "Look into the server's log.")
        if revision == schema_version():
            return ok(check, f"revision {revision}")
        return ok(check, f"revision {revision}, newer than this code's {schema_version()}")

    def _bounded(self, name: str, check: Callable[[sa.Connection], Finding]) -> Finding:
        try:
            with reading(self._engine) as connection:
                return check(connection)
        except StorageUnfit as error:
            return failure(name, "not as it has to be", str(error))
        except StorageUnavailable as error:
            advice = (
                "The statement took longer than STATEMENT_TIMEOUT_SECONDS, or the server went away."
            )
            return warning(name, f"not known: {error}", advice)
        except sa.exc.DBAPIError as error:
            return warning(name, f"not known: {error.orig}", "Look into the server's log.")


def _version(server: sa.Row[Any]) -> Finding:
    if server.number < OLDEST_POSTGRESQL:
        advice = "Upgrade it: docs/tested-on.md lists what is tested."
        return warning("sql.version", f"PostgreSQL {server.version}", advice)
    return ok("sql.version", f"PostgreSQL {server.version}")


def _fit(sql: sa.Connection) -> Finding:
    check_fit(sql)
    return ok("sql.fit", "keeps any text, and may be written by this user")


def _indexes(sql: sa.Connection) -> Finding:
    wanted = {str(index.name) for table in metadata.sorted_tables for index in table.indexes}
    broken = sorted(wanted - {*SQL.list_indexes(sql).scalars()})
    if not broken:
        return ok("sql.indexes", "all there, and valid")
    advice = (
        "Without them, statements read whole tables, or duplicates get in. Drop an invalid one and "
        "create it again with CREATE INDEX CONCURRENTLY, as its migration does."
    )
    return failure("sql.indexes", f"missing or invalid: {', '.join(broken)}", advice)


def _stock(sql: sa.Connection) -> Finding:
    rows = SQL.list_wrong_stock(sql, most_unpaid=MOST_UNPAID, most_skus=MOST_SKUS, most=NAMED).all()
    if not rows:
        return ok("orders.stock", "what is reserved agrees with the unpaid orders")
    listed = "; ".join(
        f"{row.sku}: {row.on_hand} on hand, {row.reserved} reserved, unpaid orders reserve {row.by_orders}"
        for row in rows
    )
    advice = (
        "Somebody has written these rows by hand, or there is a bug. Count what is on hand, and adjust it if it is "
        "wrong: POST /v1/stock/SKU/adjustments. Then correct what is reserved of one SKU after the other, in psql, once "
        f"each, while everything runs. Of the first: {MEND_STOCK.format(sku=rows[0].sku)}"
    )
    return failure("orders.stock", f"does not add up: {listed}", advice)


WRONG = {
    "ends": "its events, payments and row in unpaid_orders differ",
    "refunds": "its refunds and events differ",
    "early": "it was cancelled before its deadline",
}


def _orders(sql: sa.Connection) -> Finding:
    rows = SQL.list_wrong_orders(sql, newest=NEWEST, most=NAMED).all()
    if not rows:
        summary = f"the newest {NEWEST:,} orders agree with their events and payments"
        return ok("orders.history", summary)
    listed = "; ".join(
        f"{row.id}: {', '.join(text for what, text in WRONG.items() if getattr(row, what))}"
        for row in rows
    )
    advice = "Somebody has written these rows by hand, or there is a bug: read the order's events."
    return failure("orders.history", listed, advice)
