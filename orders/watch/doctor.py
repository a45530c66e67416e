"""What the service knows about its own health: SQL, its schema, stock and orders that add up, webhooks.

Reads only, a bounded part of the tables, each statement within the statement timeout.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import sqlalchemy as sa

from orders.errors import SchemaOutdated, StorageUnavailable
from orders.sql.database import reading
from orders.sql.schema import Schema, check_schema
from orders.sql.tables import SCHEMA_VERSION
from orders.watch.doctor_repository import FAILED_OFTEN, NEWEST, DoctorRepository, Indexes, Server

#: The oldest that is supported.
OLDEST_POSTGRESQL = 140_000
#: A transaction that began longer ago is not one of this service's.
LONG_SECONDS = 60.0
#: PostgreSQL stops taking writes at about 2 billion.
MANY_TRANSACTIONS = 1_000_000_000
MAX_OFFSET_SECONDS = 1.0


class Found(NamedTuple):
    """What one check found; ``level`` is ok, warning or failure."""

    check: str
    level: str
    summary: str
    #: What to do next; empty when all is well.
    advice: str = ""


class Doctor:
    """Examines the database. ``clock`` is this host's, in seconds since the epoch."""

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    def examine(self) -> Iterator[Found]:
        """Each finding as it is made."""
        try:
            before = self._clock()
            with reading(self._engine) as connection:
                server = DoctorRepository(connection).server()
            middle = (before + self._clock()) / 2
        except StorageUnavailable as error:
            advice = (
                "Check DATABASE_URL, the network and the server. What is overdue meanwhile is cancelled "
                "as soon as it is back."
            )
            yield Found("sql.answers", "failure", f"the database does not answer: {error}", advice)
            return
        yield _version(server)
        yield _writes(server)
        yield _clock(server, server.clock - middle)
        schema = self._schema()
        yield schema
        if schema.advice:
            return  # the other statements may not fit
        for check, name in (
            (_statistics, "sql.statistics"),
            (_autovacuum(server), "sql.autovacuum"),
            (_transactions, "sql.transactions"),
            (_indexes, "sql.indexes"),
            (_stock, "orders.stock"),
            (_orders, "orders.history"),
            (_webhooks, "orders.webhooks"),
        ):
            yield self._bounded(name, check)

    def _schema(self) -> Found:
        check, revision = "sql.schema", ""
        try:
            with reading(self._engine) as connection:
                schema = Schema(connection)
                revision = schema.state().revision
                check_schema(schema, revision)
        except SchemaOutdated as error:
            summary = f"revision {revision or 'none'}, not {SCHEMA_VERSION}: nothing is served"
            return Found(check, "failure", summary, str(error))
        except (StorageUnavailable, sa.exc.DBAPIError) as error:
            return Found(check, "failure", f"not known: {error}", "Look into the server's log.")
        if revision == SCHEMA_VERSION:
            return Found(check, "ok", f"revision {revision}")
        return Found(check, "ok", f"revision {revision}, newer than this code's {SCHEMA_VERSION}")

    def _bounded(self, name: str, check: Callable[[DoctorRepository], Found]) -> Found:
        try:
            with reading(self._engine) as connection:
                return check(DoctorRepository(connection))
        except StorageUnavailable as error:
            advice = (
                "The statement took longer than STATEMENT_TIMEOUT_SECONDS, or the server went away."
            )
            return Found(name, "warning", f"not known: {error}", advice)
        except sa.exc.DBAPIError as error:
            advice = "This user may not read it: grant it pg_monitor."
            return Found(name, "warning", f"not known: {error.orig}", advice)


def _version(server: Server) -> Found:
    if server.number is not None and server.number < OLDEST_POSTGRESQL:
        advice = "Upgrade it: docs/tested-on.md lists what is tested."
        return Found("sql.version", "warning", f"{server.name} {server.version}", advice)
    return Found("sql.version", "ok", f"{server.name} {server.version}")


def _writes(server: Server) -> Found:
    if server.read_only:
        advice = (
            "It is a standby, or default_transaction_read_only is on. Point DATABASE_URL at the primary, "
            "with target_session_attrs=read-write for all hosts."
        )
        return Found("sql.writes", "failure", "the database is read-only", advice)
    return Found("sql.writes", "ok", "takes writes")


def _clock(server: Server, offset_seconds: float) -> Found:
    off = abs(offset_seconds)
    if off <= MAX_OFFSET_SECONDS:
        return Found("sql.clock", "ok", f"SQL's clock and this host's agree to {off:.2f} s")
    ahead = "ahead of" if offset_seconds > 0 else "behind"
    return Found(
        "sql.clock",
        "warning",
        f"SQL's clock is {off:.1f} s {ahead} this host's",
        f"Deadlines are {server.name}'s own, so orders are cancelled on time all the same, but times in logs and "
        "in SQL cannot be compared. Synchronize the clocks (chrony, systemd-timesyncd); if Redis's is off "
        "by as much, it is this host's that is wrong.",
    )


def _statistics(repository: DoctorRepository) -> Found:
    unknown = [row.name for row in repository.tables() if row.unknown]
    if unknown:
        summary = f"no statistics on {', '.join(unknown)}"
        advice = (
            "Run ANALYZE, as after every restore and upgrade. This service's statements do not depend on it; "
            "your own queries do."
        )
        return Found("sql.statistics", "warning", summary, advice)
    return Found("sql.statistics", "ok", "none are missing")


def _autovacuum(server: Server) -> Callable[[DoctorRepository], Found]:
    def check(repository: DoctorRepository) -> Found:
        name = "sql.autovacuum"
        if server.autovacuum is None:
            return Found(name, "ok", "not needed by SQLite")
        if (server.oldest_transactions or 0) > MANY_TRANSACTIONS:
            summary = f"the oldest rows are {server.oldest_transactions:,} transactions old"
            advice = "At 2 billion PostgreSQL stops taking writes. VACUUM FREEZE, and find what keeps autovacuum from it."
            return Found(name, "failure", summary, advice)
        tables = repository.tables()
        off = [row.name for row in tables if row.not_vacuumed]
        dead = [row.name for row in tables if row.dead]
        if not server.autovacuum or off:
            where = ", ".join(off) if server.autovacuum else "everywhere"
            return Found(
                name,
                "warning",
                f"it is off: {where}",
                "Turn it on: tables and indexes bloat without it.",
            )
        if dead:
            advice = "VACUUM them; a long transaction or an old replication slot may hold autovacuum back."
            return Found(name, "warning", f"mostly dead rows in {', '.join(dead)}", advice)
        return Found(name, "ok", "on")

    return check


def _transactions(repository: DoctorRepository) -> Found:
    rows = repository.long_transactions(LONG_SECONDS)
    if not rows:
        return Found("sql.transactions", "ok", f"none is older than {LONG_SECONDS:g} s")
    listed = "; ".join(
        f"{row.pid} ({row.name or 'unnamed'}, {row.state}, {row.seconds} s)" for row in rows
    )
    advice = "It may hold locks, and dead rows cannot be removed: end it, or SELECT pg_terminate_backend(pid)."
    return Found("sql.transactions", "warning", f"open for long: {listed}", advice)


def _indexes(repository: DoctorRepository) -> Found:
    found: Indexes = repository.indexes()
    name = "sql.indexes"
    if found.missing or found.invalid:
        parts = [
            f"{what}: {', '.join(names)}"
            for what, names in (("missing", found.missing), ("invalid", found.invalid))
            if names
        ]
        advice = (
            "Without them, statements read whole tables, or duplicates get in. Drop an invalid one and "
            "create it again with CREATE INDEX CONCURRENTLY, as its migration does."
        )
        return Found(name, "failure", "; ".join(parts), advice)
    if found.unused:
        advice = "It slows every write. Drop it only if no query needs it: some serve lists that are rarely read."
        return Found(name, "warning", f"not read for a week: {', '.join(found.unused)}", advice)
    return Found(name, "ok", "all there, and valid")


def _stock(repository: DoctorRepository) -> Found:
    rows = repository.wrong_stock()
    if not rows:
        return Found("orders.stock", "ok", "what is reserved is what unpaid orders hold")
    listed = "; ".join(
        f"{row.sku}: {row.on_hand} on hand, {row.reserved} reserved, unpaid orders hold {row.held}"
        for row in rows
    )
    advice = (
        "Somebody has written these rows by hand, or there is a bug: compare the items of unpaid orders, and "
        "correct `reserved` while no API and no worker runs."
    )
    return Found("orders.stock", "failure", f"does not add up: {listed}", advice)


WRONG = {
    "ends": "its status, events and payments differ",
    "refunds": "its refunds and events differ",
    "early": "it was cancelled before its deadline",
}


def _orders(repository: DoctorRepository) -> Found:
    rows = repository.wrong_orders()
    if not rows:
        summary = f"the newest {NEWEST:,} orders agree with their events and payments"
        return Found("orders.history", "ok", summary)
    listed = "; ".join(
        f"{row.id} ({row.status}): {', '.join(text for what, text in WRONG.items() if getattr(row, what))}"
        for row in rows
    )
    advice = "Somebody has written these rows by hand, or there is a bug: read the order's events."
    return Found("orders.history", "failure", listed, advice)


def _webhooks(repository: DoctorRepository) -> Found:
    rows = repository.failing_webhooks()
    name = "orders.webhooks"
    if not rows:
        return Found(name, "ok", f"no endpoint has failed a webhook {FAILED_OFTEN} times")
    listed = "; ".join(
        f"{row.subscription_id} at {urlsplit(row.url).hostname}: {row.webhooks} webhooks, "
        f"{row.error or f'HTTP {row.status}'}"
        for row in rows
    )
    advice = (
        "Tell its client: GET /v1/webhooks/ID/deliveries shows what the endpoint answers. They are retried for "
        "a day, and can be sent again after that. If every endpoint fails, this network blocks outgoing HTTPS."
    )
    return Found(name, "warning", f"keeps failing: {listed}", advice)
