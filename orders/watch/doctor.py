"""What the service knows about its own health: SQL, its schema, stock and orders that add up, webhooks.

Reads only, a bounded part of the tables, each statement within the statement timeout.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from orders.errors import SchemaOutdated, StorageUnavailable, StorageUnfit
from orders.freezes.service import Freezes
from orders.providers.domain import MOST_WAITING, MessageStatus
from orders.providers.service import Providers
from orders.sql.database import reading, writing
from orders.sql.schema import Schema, check_schema
from orders.sql.statements import Statements
from orders.sql.tables import SCHEMA_VERSION, metadata
from orders.watch import doctor_repository as repository
from orders.watch.locked import locked_rows
from orders.webhooks.urls import parsed
from worker import Finding
from worker.findings import clock_finding, failure, ok, warning

#: The oldest that is supported.
OLDEST_POSTGRESQL = 140_000
#: How many unpaid orders' items are added up, how many SKUs they are compared with, and how many of
#: the newest orders are checked.
MOST_UNPAID, MOST_SKUS, NEWEST = 20_000, 20_000, 1000
#: How many of the subscriptions with pending webhooks are checked.
MOST_LINES = 2000


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
                server = Statements(connection).run(repository.GET_SERVER).one()
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
            (_locked, "orders.locked"),
            (_stock, "orders.stock"),
            (_orders, "orders.history"),
            (_freezes, "orders.freezes"),
            (_webhooks, "orders.webhooks"),
            (_inbox, "orders.inbox"),
        ):
            yield self._bounded(name, check)

    def _settings(self, sql: Statements) -> Finding:
        wrong = sql.run(repository.GET_SETTINGS, wanted=dict(self._session)).all()
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
                Schema(connection).try_disk()
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
                schema = Schema(connection)
                revision = schema.state().revision
                check_schema(schema, revision)
        except SchemaOutdated as error:
            summary = f"revision {revision or 'none'}, not {SCHEMA_VERSION}: nothing is served"
            return failure(check, summary, str(error))
        except (StorageUnavailable, sa.exc.DBAPIError) as error:
            return failure(check, f"not known: {error}", "Look into the server's log.")
        if revision == SCHEMA_VERSION:
            return ok(check, f"revision {revision}")
        return ok(check, f"revision {revision}, newer than this code's {SCHEMA_VERSION}")

    def _bounded(self, name: str, check: Callable[[Statements], Finding]) -> Finding:
        try:
            with reading(self._engine) as connection:
                return check(Statements(connection))
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


def _fit(sql: Statements) -> Finding:
    Schema(sql.connection).check_fit()
    return ok("sql.fit", "keeps any text, and may be written by this user")


def _indexes(sql: Statements) -> Finding:
    wanted = {str(index.name) for table in metadata.sorted_tables for index in table.indexes}
    broken = sorted(wanted - {*sql.run(repository.GET_INDEXES).scalars()})
    if not broken:
        return ok("sql.indexes", "all there, and valid")
    advice = (
        "Without them, statements read whole tables, or duplicates get in. Drop an invalid one and "
        "create it again with CREATE INDEX CONCURRENTLY, as its migration does."
    )
    return failure("sql.indexes", f"missing or invalid: {', '.join(broken)}", advice)


def _locked(sql: Statements) -> Finding:
    rows = locked_rows(sql.connection)
    if not rows:
        return ok("orders.locked", "no overdue order waits for a locked row")
    advice = (
        "See what that connection does (pg_stat_activity), and end it if it is stuck: "
        "SELECT pg_terminate_backend(PID)."
    )
    return failure("orders.locked", "; ".join(map(str, rows)), advice)


def _stock(sql: Statements) -> Finding:
    rows = sql.run(repository.GET_WRONG_STOCK, most_unpaid=MOST_UNPAID, most_skus=MOST_SKUS).all()
    if not rows:
        return ok("orders.stock", "what is reserved agrees with the unpaid orders")
    listed = "; ".join(
        f"{row.sku}: {row.on_hand} on hand, {row.reserved} reserved, unpaid orders reserve {row.by_orders}"
        for row in rows
    )
    advice = (
        "Somebody has written these rows by hand, or there is a bug. Count what is on hand, and adjust it if it is "
        "wrong: POST /v1/stock/SKU/adjustments. Then correct what is reserved of one SKU after the other, in psql, once "
        f"each, while everything runs. Of the first: {repository.MEND_STOCK.format(sku=rows[0].sku)}"
    )
    return failure("orders.stock", f"does not add up: {listed}", advice)


WRONG = {
    "ends": "its events, payments and row in unpaid_orders differ",
    "refunds": "its refunds and events differ",
    "early": "it was cancelled before its deadline",
}


def _orders(sql: Statements) -> Finding:
    rows = sql.run(repository.GET_WRONG_ORDERS, newest=NEWEST).all()
    if not rows:
        summary = f"the newest {NEWEST:,} orders agree with their events and payments"
        return ok("orders.history", summary)
    listed = "; ".join(
        f"{row.id}: {', '.join(text for what, text in WRONG.items() if getattr(row, what))}"
        for row in rows
    )
    advice = "Somebody has written these rows by hand, or there is a bug: read the order's events."
    return failure("orders.history", listed, advice)


def _freezes(sql: Statements) -> Finding:
    found = Freezes(sql.connection).in_force(repository.NAMED)
    if not found:
        return ok("orders.freezes", "no order is frozen")
    listed = "; ".join(map(str, found))
    advice = (
        "These orders are not cancelled meanwhile. `python -m orders thaw ID` ends a freeze; "
        "`python -m orders freezes` lists them. One that has ended needs a worker to give back time."
    )
    return warning("orders.freezes", f"frozen: {listed}", advice)


def _webhooks(sql: Statements) -> Finding:
    rows = sql.run(repository.GET_FAILING_WEBHOOKS, most_lines=MOST_LINES).all()
    name = "orders.webhooks"
    if not rows:
        return ok(name, f"no endpoint has failed a webhook {repository.FAILED_OFTEN} times")
    listed = "; ".join(
        f"{row.subscription_id} at {parsed(row.url, allow_private=True).host}: since {row.since:%Y-%m-%d %H:%M} UTC, "
        f"{row.error or f'HTTP {row.status}'}"
        for row in rows
    )
    advice = (
        "Tell its client: GET /v1/webhooks/ID/deliveries shows what the endpoint answers. They are retried for "
        "three days, and can be sent again after that. If every endpoint fails, this network blocks outgoing HTTPS."
    )
    return warning(name, f"keeps failing: {listed}", advice)


def _inbox(sql: Statements) -> Finding:
    name = "orders.inbox"
    providers = Providers(sql.connection)
    waiting = providers.waiting()
    oldest = providers.messages(MessageStatus.WAITING, page_size=repository.NAMED)
    if not oldest:
        return ok(name, "no provider's message waits for a person")
    listed = "; ".join(f"{each.id} of {each.client}: {each.note}" for each in oldest)
    since = f"since {oldest[0].created_at:%Y-%m-%d %H:%M} UTC"
    advice = (
        "They may report money that the service does not know of: python -m orders providers inbox "
        "shows them. Record what they report, then replay or dismiss them."
    )
    if waiting.messages < MOST_WAITING:
        summary = f"{waiting.messages} of providers' messages wait, {since}: {listed}"
        return warning(name, summary, advice)
    summary = f"{MOST_WAITING:,} or more of providers' messages wait, {since}: {listed}"
    advice += " An endpoint that has so many gets 503 for what cannot be recorded."
    return failure(name, summary, advice)
