"""Many deadlines moved by the service itself: after a freeze, and by operators.

An operation moves some of them, so it can be interrupted between any two.
"""

import math
import time
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.errors import KeyReused
from orders.order.domain import EventType
from orders.order.operations import move, rows_of
from orders.order.payments import Payments
from orders.order.repository import LAST_ID
from orders.order.waiting import HOLDS, in_scope
from orders.sql.database import autocommit, reading
from orders.sql.expressions import (
    Id,
    Instant,
    clock,
    first_uuid7,
    later,
    ms_until,
    now,
    one_of,
    text_literal,
    unindexed,
)
from orders.sql.ids import first_id_after
from orders.sql.keeping import extensions, freezes
from orders.sql.statements import FIRST
from orders.sql.steps import Operation, Step
from orders.sql.tables import order_events, order_items, unpaid_orders

p = sa.bindparam
#: How many deadlines one statement moves.
BATCH_SIZE = 500
MILLISECOND = sa.literal_column("1", sa.BigInteger)


class ExtendedBatch(NamedTuple):
    """What one statement did."""

    #: By order, in how many milliseconds it expires.
    extended: dict[str, float]
    #: Whether there was nothing left to do, not even an order that somebody else has locked.
    done: bool


def _one(row: sa.FromClause, name: str) -> sa.ColumnElement[Any]:
    """A column of a single row, as a value: a planner then sees that an index applies."""
    return sa.select(row.c[name]).scalar_subquery()


def _count(rows: sa.FromClause) -> sa.ColumnElement[int]:
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery()


def _outcome(
    extended: sa.FromClause, deliveries: sa.FromClause, rest: sa.Select[Any]
) -> sa.Select[Any]:
    until = ms_until(extended.c.expires_at, extended.c.at)
    parts = (
        rows_of("extended", extended.c.order_id, until),
        rows_of("delivery", deliveries.c.id),
        rest,
    )
    return sa.select(sa.union_all(*parts).subquery("outcome"))


@Operation
def give_back(step: Step) -> sa.Select[Any]:
    """Give some orders the time back that a freeze took: all that it holds and that were placed
    before its end expire ``give_back_ms`` after that, or later.

    When there is no such order any more, the freeze no longer holds. Returns rows of three kinds:
    ``extended``, an order and the milliseconds until it expires; ``delivery``, the id of a webhook
    delivery; and ``freeze``, with 1 if it no longer holds. There is no such row if the freeze still
    lasts, if it has given back before, and if another statement is at it.
    """
    freeze = step(
        "freeze",
        sa.select(freezes, later(freezes.c.ends_at, freezes.c.give_back_ms).label("deadline"))
        .where(freezes.c.id == p("for_id", type_=Id), unindexed(HOLDS), freezes.c.ends_at <= now())
        .with_for_update(skip_locked=True, key_share=True),
    )
    placed_later = first_uuid7(later(_one(freeze, "ends_at"), MILLISECOND))
    scope = (_one(freeze, name) for name in ("client_id", "sku", "provider"))
    deadline = _one(freeze, "deadline")
    sooner = unpaid_orders.c.expires_at < deadline
    found = step(
        "found",
        sa.select(unpaid_orders.c.order_id)
        .where(sooner, in_scope(unpaid_orders, *scope), unpaid_orders.c.order_id < placed_later)
        .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
        .limit(p("most")),
    )
    locked = step(
        "locked",
        sa.select(unpaid_orders.c.order_id, unpaid_orders.c.expires_at)
        .where(one_of(unpaid_orders.c.order_id, sa.select(found.c.order_id)), unindexed(sooner))
        .order_by(unpaid_orders.c.order_id)
        .with_for_update(skip_locked=True),
    )
    facts = {
        "reason": text_literal("freeze"),
        "freeze_id": sa.cast(_one(freeze, "id"), sa.String),
        "note": _one(freeze, "reason"),
        "by": _one(freeze, "opened_by"),
    }
    extended, deliveries = move(step, locked, deadline, facts)
    is_over = ~sa.exists(sa.select(found.c.order_id))
    counted = step(
        "counted",
        sa.update(freezes)
        .where(freezes.c.id == _one(freeze, "id"))
        .values(
            given_back=freezes.c.given_back + _count(extended),
            given_back_at=sa.case((is_over, clock())),
        )
        .returning(freezes.c.id, freezes.c.given_back_at),
    )
    over = sa.cast(counted.c.given_back_at.is_not(None), sa.Integer)
    return _outcome(extended, deliveries, rows_of("freeze", counted.c.id, over))


# -- by operators --------------------------------------------------------------------------

_extension = p("for_extension", type_=sa.String)
_of_extension = extensions.c.id == p("for_extension", type_=Id)
# Note what an extension is, and which orders come before it by the clock that makes their ids; unless
# it is known.
BEGIN = (
    insert(extensions)
    .values(
        id=p("for_extension", type_=Id),
        fingerprint=p("for_fingerprint", type_=sa.String),
        before_id=first_uuid7(later(now(), MILLISECOND)),
        after_id=FIRST.id,
    )
    .on_conflict_do_nothing()
)
GET_EXTENSION = sa.select(extensions).where(_of_extension)
# Note up to which order an extension is done, so that repeating it goes on from there.
REACHED = (
    sa.update(extensions)
    .where(_of_extension, extensions.c.after_id < p("reached_id", type_=Id))
    .values(after_id=p("reached_id", type_=Id))
)
#: What is wanted of an order, as parameters; null wants nothing.
_client_id = p("for_client", type_=Id)
_sku = p("for_sku", type_=order_items.c.sku.type)
_due_before = sa.func.coalesce(
    p("due_before", type_=Instant), sa.literal_column("timestamptz 'infinity'", Instant)
)


def _page_of_wanted(step: Step) -> tuple[sa.FromClause, sa.FromClause]:
    """The next unpaid orders by id, and those among them that are wanted: bounded work, even if
    that is none. What this extension has extended before is not wanted again.
    """
    page = step(
        "page",
        sa.select(unpaid_orders)
        .where(
            unpaid_orders.c.order_id > p("last_id", type_=Id),
            unpaid_orders.c.order_id < p("before_id", type_=Id),
        )
        .order_by(unpaid_orders.c.order_id)
        .limit(p("most")),
    )
    of_extension = order_events.c.data.op("->>")(text_literal("extension_id")) == _extension
    extended_before = sa.exists(
        sa.select(order_events.c.id).where(
            order_events.c.order_id == page.c.order_id,
            order_events.c.type == text_literal(EventType.EXTENDED),
            of_extension,
        )
    )
    provider = sa.cast(sa.null(), sa.String)
    wanted = step(
        "wanted",
        sa.select(page.c.order_id, page.c.version).where(
            page.c.expires_at < _due_before,
            in_scope(page, _client_id, _sku, provider),
            sa.case((extended_before, sa.false()), else_=sa.true()),
        ),
    )
    return page, wanted


def _end_of(page: sa.FromClause) -> sa.ColumnElement[Any]:
    return sa.select(page.c.order_id).order_by(page.c.order_id.desc()).limit(1).scalar_subquery()


@Operation
def count_wanted(step: Step) -> sa.Select[Any]:
    """How many orders of the next page are wanted, and the page's last id, null if there is none."""
    page, wanted = _page_of_wanted(step)
    return sa.select(_count(wanted).label("wanted"), _end_of(page).label("last_id"))


@Operation
def extend_wanted(step: Step) -> sa.Select[Any]:
    """Give the wanted orders of the next page a later deadline; those that are overdue, from now on.

    Returns rows of three kinds: ``extended`` and ``delivery`` as `give_back`; and ``page``, its last
    id, null if there is none, and how many wanted orders were skipped, because they are locked or
    have just changed.
    """
    page, wanted = _page_of_wanted(step)
    # The version, too: another run of this extension may have been faster since the statement began.
    same = sa.cast(unpaid_orders.c.order_id, sa.String).concat(
        sa.cast(unpaid_orders.c.version, sa.String)
    )
    seen = sa.select(
        sa.cast(wanted.c.order_id, sa.String).concat(sa.cast(wanted.c.version, sa.String))
    )
    locked = step(
        "locked",
        sa.select(unpaid_orders.c.order_id, unpaid_orders.c.expires_at)
        .where(
            one_of(unpaid_orders.c.order_id, sa.select(wanted.c.order_id)),
            one_of(same, seen),
        )
        .order_by(unpaid_orders.c.order_id)
        .with_for_update(skip_locked=True),
    )
    start = sa.type_coerce(sa.func.greatest(unpaid_orders.c.expires_at, now()), Instant)
    facts = {
        "reason": text_literal("operators"),
        "extension_id": _extension,
        "note": p("for_note", type_=sa.String),
        "by": p("for_whom", type_=sa.String),
    }
    extended, deliveries = move(step, locked, later(start, "for_ms"), facts)
    skipped = _count(wanted) - _count(locked)
    return _outcome(extended, deliveries, rows_of("page", _end_of(page), skipped))


class Wanted(NamedTuple):
    """Which unpaid orders operators extend: those that are all of what is given."""

    client_id: str | None = None
    sku: str | None = None
    placed_after: datetime | None = None
    due_before: datetime | None = None


class ExtensionProgress(NamedTuple):
    """How many orders were extended, and whether all were: otherwise repeat it."""

    extended: int
    done: bool


class Extensions(Payments):
    def give_back(self, connection: sa.Connection, freeze_id: str) -> ExtendedBatch | None:
        """Give some orders their time back, in one statement, on a connection that commits it by
        itself; None if the freeze is not ready for it, as `give_back` says.

        Repeat it until it is done. Interrupting it loses nothing.
        """
        values = {"for_id": freeze_id, "most": BATCH_SIZE, "reminders": self._reminders}
        rows = give_back(connection, **values)
        batch = self._batch(rows)
        self._observe(EventType.EXTENDED, "freeze", len(batch.extended))
        return batch if any(row.kind == "freeze" for row in rows) else None

    def count(self, wanted: Wanted, *, seconds: float = math.inf) -> ExtensionProgress:
        """How many orders `extend` would extend: all if it is done, otherwise as many as it counted in so many seconds."""
        until = time.monotonic() + seconds
        total, values = 0, {**first_page(wanted), "for_extension": ""}
        with reading(self._engine) as connection:
            while values["last_id"] is not None and time.monotonic() <= until:
                [row] = count_wanted(connection, **values)
                total, values = total + row.wanted, {**values, "last_id": row.last_id}
        return ExtensionProgress(total, done=values["last_id"] is None)

    def extend(
        self, wanted: Wanted, *, ms: int, note: str, by: str, extension_id: str, seconds: float
    ) -> ExtensionProgress:
        """Extend orders by so many milliseconds, each once for each extension, a batch to a statement.

        An overdue order is extended from now on. Takes little more than ``seconds``. Interrupting it
        loses nothing: repeat it with the same id until it is done. It is not while orders are locked.
        What was placed after the first call is not wanted. Raises KeyReused for another extension's id.
        """
        until = time.monotonic() + seconds
        values = first_page(wanted)
        asked = sha256(repr([str(each) for each in (*wanted, ms, note)]).encode()).hexdigest()
        known = self._begin(extension_id, asked)
        values["before_id"] = known.before_id
        reached_id = values["last_id"] = max(values["last_id"], known.after_id)
        extended, skipped = 0, 0
        values |= {"for_ms": ms, "for_note": note, "for_whom": by, "for_extension": extension_id}
        while values["last_id"] is not None and time.monotonic() <= until:
            with autocommit(self._engine) as connection:
                rows = extend_wanted(connection, **values, reminders=self._reminders)
            batch = self._batch(rows)
            self._observe(EventType.EXTENDED, "operators", len(batch.extended))
            extended += len(batch.extended)
            [page] = (row for row in rows if row.kind == "page")
            skipped, values = skipped + page.ms, {**values, "last_id": page.id}
            if page.id and not skipped:
                reached_id = page.id
        with autocommit(self._engine) as connection:
            connection.execute(REACHED, {"for_extension": extension_id, "reached_id": reached_id})
        return ExtensionProgress(extended, done=not skipped and values["last_id"] is None)

    def _begin(self, extension_id: str, fingerprint: str) -> sa.Row[Any]:
        """Note what an extension is; return what is known of it."""
        row = {"for_extension": extension_id, "for_fingerprint": fingerprint}
        with autocommit(self._engine) as connection:
            connection.execute(BEGIN, row)
            known = connection.execute(GET_EXTENSION, row).one()
        if known.fingerprint != fingerprint:
            raise KeyReused
        return known

    def _batch(self, rows: Sequence[sa.Row[Any]]) -> ExtendedBatch:
        """What was done, once the checks and the webhooks are scheduled."""
        extended = {row.id: row.ms for row in rows if row.kind == "extended"}
        for order_id, ms in extended.items():
            self._scheduler.schedule(order_id, delay_ms=ms)
        self._send(row.id for row in rows if row.kind == "delivery")
        return ExtendedBatch(extended, any(row.kind == "freeze" and row.ms for row in rows))


def first_page(wanted: Wanted) -> dict[str, Any]:
    """The parameters of the first page of all orders."""
    placed_after = wanted.placed_after
    return {
        "for_client": wanted.client_id,
        "for_sku": wanted.sku,
        "due_before": wanted.due_before,
        "last_id": FIRST.id if placed_after is None else first_id_after(placed_after),
        "before_id": LAST_ID,
        "most": BATCH_SIZE,
    }
