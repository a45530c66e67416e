"""What changes orders: placing, extending, paying and cancelling. What expires them is in ``sql/expire.sql``.

An order never changes. While it is unpaid it has a row in `unpaid_orders`; the statement that deletes
that row ends the order, and writes its terminal event.

Locks are taken in one order everywhere, so that operations cannot deadlock: existing orders by id,
then stock by SKU. Nobody else sees a new order yet, so placing takes stock first. A request that is
repeated while the first one runs locks the stock, but finds the order by its key without waiting for
a payment of it.

An operation is one statement, which sees what was committed when it began. So it decides by rows
that it has locked: one that another transaction changed meanwhile is read as that transaction left
it, and is compared with the conditions again. One that was deleted meanwhile is not found, and how
the order ended is seen only by the next statement.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningDelete

from orders.order.domain import CancelReason, EventType
from orders.order.sparing import end_attempts, kept_with, move_attempts
from orders.order.states import client_of, unpaid_state, with_items
from orders.sql.expressions import (
    Id,
    Instant,
    clock,
    later,
    ms_until,
    now,
    one_of,
    rfc3339_text,
    text_literal,
    unindexed,
    uuid7,
)
from orders.sql.sequences import announced
from orders.sql.steps import Operation, Step, insertion
from orders.sql.tables import (
    EVERY,
    IS_EXPIRED,
    TERMINAL,
    order_events,
    order_items,
    orders,
    payments,
    provider_endpoints,
    stock_items,
    unpaid_orders,
    webhook_deliveries,
    webhook_interests,
)
from orders.stock.domain import MAX_MINOR

p = sa.bindparam
Quantity = sa.ColumnElement[int]
ZERO = sa.literal_column("0", sa.Integer)
#: The deadline, version and client reference that an order ends with.
Ending = tuple[sa.ColumnElement[Any], sa.ColumnElement[Any], sa.ColumnElement[Any]]

OWN = (orders.c.id == p("for_id"), unindexed(orders.c.client_id == p("for_client")))
OWN_UNPAID = (
    unpaid_orders.c.order_id == p("for_id"),
    unindexed(unpaid_orders.c.client_id == p("for_client")),
)
OWN_PAYMENT = (payments.c.id == p("for_id"), unindexed(payments.c.client_id == p("for_client")))
WITH_KEY = (orders.c.client_id == p("for_client"), orders.c.idempotency_key == p("for_key"))


# -- what operations have in common --------------------------------------------------------


def is_of_version(column: sa.Column[int]) -> sa.ColumnElement[bool]:
    """Whether an order's version is in the parameter, between spaces; "*" is any version."""
    expected = p("for_versions", type_=sa.String)
    version = sa.cast(column, sa.String)
    between_spaces = text_literal(" ").concat(version).concat(text_literal(" "))
    return (expected == "*") | expected.contains(between_spaces)


def _end(at: sa.ColumnElement[Any]) -> ReturningDelete[Any]:
    """End orders at a moment; each row that is returned is an order that this statement ended."""
    columns = (each for each in unpaid_orders.c if each.name != "pieces")
    return sa.delete(unpaid_orders).returning(*columns, at.label("at"))


def _ending_of(ended: sa.FromClause) -> Ending:
    return ended.c.expires_at, ended.c.version + 1, ended.c.client_reference


def _release(step: Step, cancelled: sa.FromClause, reason: CancelReason) -> sa.FromClause:
    """The steps after a cancellation: return the stock and write the events."""
    _change_stock(step, _reserved_by(step, cancelled), lambda all_, _: {"reserved": -all_})
    because, ending = {"reason": text_literal(reason)}, _ending_of(cancelled)
    event = event_of(cancelled, EventType.CANCELLED, cancelled.c.at, because, ending=ending)
    return add_events(step, event)


class _Locked(NamedTuple):
    """Whether an order exists and is locked, and whether it is unpaid."""

    at_all: sa.ColumnElement[bool]
    unpaid: sa.ColumnElement[bool]


def lock(step: Step, order_id: sa.ColumnElement[str]) -> _Locked:
    """Lock an order whatever its state, so that its events are in commit order.

    Of an unpaid order the row that ends it is locked; of one that has ended, the order itself.
    """
    unpaid = step(
        "open",
        sa.select(unpaid_orders.c.order_id)
        .where(unpaid_orders.c.order_id == order_id)
        .with_for_update(),
    )
    is_open = sa.exists(sa.select(unpaid.c.order_id))
    ended = step(
        "ended",
        sa.select(orders.c.id)
        .where(orders.c.id == order_id, ~is_open)
        .with_for_update(key_share=True),
    )
    return _Locked(is_open | sa.exists(sa.select(ended.c.id)), is_open)


def _reserved_by(step: Step, ended: sa.FromClause) -> sa.FromClause:
    """What these orders reserve of each SKU."""
    return step(
        "reservations",
        sa.select(order_items.c.sku, sa.func.sum(order_items.c.quantity).label("quantity"))
        .where(one_of(order_items.c.order_id, sa.select(ended.c.order_id)))
        .group_by(order_items.c.sku),
    )


def _in_sku_order(lines: sa.FromClause) -> sa.ColumnElement[bytes]:
    """By bytes: as text SKUs sort by the locale of a database."""
    return sa.cast(lines.c.sku, sa.LargeBinary)


def _change_stock(
    step: Step,
    lines: sa.FromClause,
    added: Callable[[Quantity, Quantity], dict[str, Quantity]],
    *,
    reserved: Quantity | None = None,
    where: sa.FromClause | None = None,
) -> None:
    """For each line, add to the stock's columns what ``added`` returns, given the line's quantity
    and how much of it is reserved; nothing unless there is a row in ``where``.

    It is an insert that always conflicts: it finds a row by its key, whatever the planner
    estimates, and reads the row as it is once it is locked. An update would read the row as of the
    statement's start, and look it up again if it has changed since: two concurrent batches would
    take longer than one after the other.
    """
    row = {
        "sku": lines.c.sku,
        "on_hand": lines.c.quantity,
        "reserved": lines.c.quantity if reserved is None else reserved,
        "price_minor": ZERO,
        "currency": text_literal(""),
    }
    source = lines if where is None else lines.join(where, sa.true())
    change = insertion(stock_items, row, source=source, order_by=_in_sku_order(lines))
    more = added(change.excluded.on_hand, change.excluded.reserved)
    values = {name: stock_items.c[name] + some for name, some in more.items()}
    step("stock", change.on_conflict_do_update(index_elements=["sku"], set_=values))


def money(payment: sa.FromClause) -> dict[str, sa.ColumnElement[Any]]:
    """The facts about a payment in an event."""
    return {
        "payment_id": sa.cast(payment.c.id, sa.String),
        **{name: payment.c[name] for name in ("provider", "reference", "amount_minor", "currency")},
    }


def add_events(
    step: Step, *events: sa.Select[Any], reminders: sa.ColumnElement[bool] | None = None
) -> sa.FromClause:
    """Write events of locked orders, so that ids are in commit order, and the webhook deliveries of
    each.

    ``reminders`` says whether an event brings a reminder with it. Returns the ids of the deliveries.
    """
    rows = events[0] if len(events) == 1 else sa.union_all(*events)
    added = (
        insert(order_events)
        .from_select(EVENT[: len(events[0].selected_columns)], rows)
        .returning(
            *(order_events.c[name] for name in ("id", "order_id", "client_id", "type", "at"))
        )
    )
    event, wish = step("events", added), webhook_interests.alias("i")
    # Filtered by client first: clients without subscriptions leave nothing to join.
    wanted = [
        wish.c.client_id == event.c.client_id,
        wish.c.event_type.in_([event.c.type, text_literal(EVERY)]),
        one_of(wish.c.client_id, sa.select(event.c.client_id)),
    ]
    if reminders is not None:
        wanted.append(reminders | (wish.c.type == wish.c.event_type))
    row = {
        "subscription_id": wish.c.subscription_id,
        "order_id": event.c.order_id,
        "event_id": event.c.id,
        "type": sa.case((wish.c.type == text_literal(EVERY), event.c.type), else_=wish.c.type),
        "created_at": event.c.at,
        "due_at": event.c.at,
    }
    new = insertion(webhook_deliveries, row, source=event.join(wish, sa.and_(*wanted)))
    return step("deliveries", new.returning(webhook_deliveries.c.id))


def ids_of(deliveries: sa.FromClause) -> sa.Label[Any]:
    """The ids of all deliveries in one value, to be returned beside other columns."""
    found = sa.select(sa.func.json_agg(deliveries.c.id, type_=sa.JSON))
    return found.scalar_subquery().label("deliveries")


#: The columns of an event; the last three are those of a terminal one.
EVENT = (
    *("order_id", "client_id", "type", "at", "data", "key_id"),
    *("expires_at", "version", "client_reference"),
)
#: The id of the API key that something is done with.
BY_KEY = p("by_key", value=None, type_=Id)
NULL: sa.ColumnClause[Any] = sa.literal_column("NULL")
#: For an event that ends nothing, beside one that does.
NO_ENDING: Ending = (NULL, NULL, NULL)


def event_of(
    of: sa.FromClause,
    kind: EventType,
    at: sa.ColumnElement[Any],
    data: Mapping[str, sa.ColumnElement[Any]],
    *conditions: sa.ColumnElement[bool],
    ending: Ending | tuple[()] = (),
) -> sa.Select[Any]:
    """An event of each order in ``of``, which has the order's id and client."""
    pairs = (each for name, value in data.items() for each in (text_literal(name), value))
    facts = sa.func.json_build_object(*pairs) if data else sa.literal_column("'{}'::json")
    row = (of.c.order_id, of.c.client_id, text_literal(kind), at, facts, BY_KEY, *ending)
    return sa.select(*row).where(announced(), *conditions)


def rows_of(
    kind: str, row_id: sa.ColumnElement[Any], ms: sa.ColumnElement[Any] | None = None
) -> sa.Select[Any]:
    """Rows of one kind, for an operation that returns several."""
    return sa.select(
        text_literal(kind).label("kind"),
        row_id.label("id"),
        (sa.cast(sa.null(), sa.BigInteger) if ms is None else ms).label("ms"),
    )


#: Whether reminders are switched on: a parameter of the operations that set a deadline.
REMINDERS = p("reminders", value=False, type_=sa.Boolean)


# -- the operations ------------------------------------------------------------------------


def _line_of(quantity: Quantity) -> tuple[sa.ColumnElement[Any], ...]:
    """A SKU in a basket, with what is left of it then, and how long it may be reserved: as was asked
    for; or without, for its own timeout or the default.
    """
    least, most = p("for_min_ms", type_=sa.BigInteger), p("for_max_ms", type_=sa.BigInteger)
    own = sa.cast(stock_items.c.timeout_seconds, sa.BigInteger) * sa.literal_column("1000")
    is_asked = most.is_(None) | stock_items.c.timeout_seconds.is_(None)
    bounded = sa.func.greatest(sa.func.least(own, most), least)
    return (
        stock_items.c.sku,
        stock_items.c.price_minor,
        stock_items.c.currency,
        quantity.label("quantity"),
        (stock_items.c.on_hand - stock_items.c.reserved - quantity).label("spare"),
        # As a double, which is exact up to MAX_MINOR, and does not overflow beyond it.
        (sa.cast(quantity, sa.Double) * stock_items.c.price_minor).label("amount"),
        sa.case((is_asked, p("for_ms", type_=sa.BigInteger)), else_=bounded).label("timeout_ms"),
    )


def _insert_order(step: Step, lines: sa.FromClause) -> tuple[sa.FromClause, sa.FromClause]:
    """The basket, with why it is refused, and the order if it is not."""
    total = sa.func.sum(lines.c.amount)
    currency = sa.func.min(lines.c.currency)
    refusal = sa.case(
        (
            (sa.func.count() != p("skus", type_=sa.Integer)) | (sa.func.min(lines.c.spare) < ZERO),
            text_literal("unavailable"),
        ),
        (currency != sa.func.max(lines.c.currency), text_literal("mixed_currencies")),
        (total > MAX_MINOR, text_literal("total_too_large")),
    )
    basket = step(
        "basket",
        sa.select(
            refusal.label("refusal"),
            currency.label("currency"),
            total.label("total"),
            sa.func.sum(lines.c.quantity).label("pieces"),
            sa.func.min(lines.c.timeout_ms).label("timeout_ms"),
            clock().label("moment"),  # when the stock is locked, however long that took
        ),
    )
    row = {
        "id": uuid7(basket.c.moment, "for_random"),
        "client_id": "for_client",
        "currency": basket.c.currency,
        "total_minor": sa.cast(basket.c.total, sa.BigInteger),
        "created_at": basket.c.moment,
        "timeout_ms": basket.c.timeout_ms,
        "idempotency_key": "for_key",
        "fingerprint": "for_fingerprint",
        "client_reference": "for_reference",
        "metadata": "for_metadata",
        "origin": "for_origin",
    }
    placed = step(
        "placed",
        insertion(orders, row, basket.c.refusal.is_(None))
        .on_conflict_do_nothing()
        .returning(
            orders.c.id.label("order_id"),
            *orders.c["client_id", "created_at", "client_reference", "timeout_ms"],
            later(orders.c.created_at, orders.c.timeout_ms).label("expires_at"),
            (orders.c.total_minor == ZERO).label("is_free"),
        ),
    )
    unpaid = {
        "order_id": placed.c.order_id,
        "client_id": placed.c.client_id,
        "expires_at": placed.c.expires_at,
        "pieces": sa.select(basket.c.pieces).scalar_subquery(),
        "client_reference": placed.c.client_reference,
    }
    step("unpaid", insertion(unpaid_orders, unpaid, ~placed.c.is_free))
    items = {
        "order_id": placed.c.order_id,
        "sku": lines.c.sku,
        "quantity": lines.c.quantity,
        "unit_price_minor": lines.c.price_minor,
    }
    step("items", insertion(order_items, items, source=lines.join(placed, sa.true())))
    return basket, placed


def _first_events(placed: sa.FromClause) -> tuple[sa.Select[Any], sa.Select[Any]]:
    at = placed.c.created_at
    ending: Ending = (placed.c.expires_at, sa.literal_column("1"), placed.c.client_reference)
    return (
        event_of(placed, EventType.CREATED, at, {}, ending=NO_ENDING),
        event_of(placed, EventType.PAID, at, {}, placed.c.is_free, ending=ending),
    )


def _reserve(step: Step, lines: sa.FromClause, placed: sa.FromClause) -> None:
    """Reserve what was placed. What is paid at once leaves the shelf instead."""
    _change_stock(
        step,
        lines,
        lambda all_, reserved: {"reserved": reserved, "on_hand": reserved - all_},
        reserved=sa.case((placed.c.is_free, ZERO), else_=lines.c.quantity),
        where=placed,
    )


@Operation
def place(step: Step) -> sa.Select[Any]:
    """Insert an order and reserve its stock if all of that is available, and if its key is new.

    An order that costs nothing is paid at once, and its stock sold. Returns a row for each SKU
    that was found, with what it has to spare; and with the basket's total and why it is refused,
    the order's id and when it was placed, or nulls, and the name of its client. Returns no rows if
    the key is already known.
    """
    quantities = sa.func.json_each_text(sa.bindparam("quantities", type_=sa.JSON))
    wanted = quantities.table_valued(sa.column("key", sa.String), "value", name="w")
    lines = step(
        "lines",
        sa.select(*_line_of(sa.cast(wanted.c.value, sa.Integer)))
        .join_from(stock_items, wanted, wanted.c.key == stock_items.c.sku)
        .where(
            one_of(stock_items.c.sku, sa.select(wanted.c.key)),
            unindexed(stock_items.c.retired_at.is_(None)),
            ~sa.exists(sa.select(orders.c.id).where(*WITH_KEY)),
        )
        .order_by(_in_sku_order(stock_items))
        .with_for_update(key_share=True, of=stock_items),
    )
    basket, placed = _insert_order(step, lines)
    deliveries = add_events(step, *_first_events(placed), reminders=REMINDERS)
    _reserve(step, lines, placed)
    return sa.select(
        *lines.c["sku", "price_minor", "currency", "spare"],
        *basket.c["refusal", "total"],
        *placed.c["order_id", "created_at", "timeout_ms"],
        client_of(p("for_client", type_=Id)),
        ids_of(deliveries),
    ).select_from(lines.join(basket, sa.true()).join(placed, sa.true(), isouter=True))


def move(
    step: Step,
    locked: sa.FromClause,
    deadline: sa.ColumnElement[Any],
    because: Mapping[str, sa.ColumnElement[Any]] | None = None,
) -> tuple[sa.FromClause, sa.FromClause]:
    """Give locked orders another deadline; returns those orders, and the webhook deliveries."""
    extended = step(
        "extended",
        sa.update(unpaid_orders)
        .where(one_of(unpaid_orders.c.order_id, sa.select(locked.c.order_id)))
        .values(
            expires_at=deadline,
            version=unpaid_orders.c.version + 1,
            kept_until=kept_with(unpaid_orders, deadline),
        )
        .returning(unpaid_orders, clock().label("at")),
    )
    move_attempts(step, extended)
    facts = {
        "previous_expires_at": rfc3339_text(locked.c.expires_at),
        "expires_at": rfc3339_text(extended.c.expires_at),
        **(because or {}),
    }
    same = locked.c.order_id == extended.c.order_id
    event = event_of(extended, EventType.EXTENDED, extended.c.at, facts, same)
    return extended, add_events(step, event, reminders=REMINDERS)


@Operation
def extend(step: Step) -> sa.Select[Any]:
    """Move the deadline of a client's own unpaid order, if it has an expected version.

    The new deadline must be within bounds that count from the order's creation, and not be past
    when the order is locked. Returns the order, with the milliseconds until then.
    """
    deadline = p("for_deadline", type_=Instant)
    within_bounds = sa.exists(
        sa.select(orders.c.id).where(
            *OWN,
            deadline >= later(orders.c.created_at, "for_min_ms"),
            deadline <= later(orders.c.created_at, "for_max_ms"),
        )
    )
    order = step(
        "own",
        sa.select(*unpaid_orders.c["order_id", "expires_at"])
        .where(*OWN_UNPAID, is_of_version(unpaid_orders.c.version))
        .where(within_bounds, deadline >= clock())
        .with_for_update(),
    )
    extended, deliveries = move(step, order, deadline)
    left = ms_until(extended.c.expires_at, extended.c.at).label("ms")
    state = unpaid_state(extended).add_columns(left, ids_of(deliveries)).cte("state")
    return with_items(state)


@Operation
def pay(step: Step) -> sa.Select[Any]:
    """Record a payment for a client's own order, and the order as paid if it is unpaid.

    The order's lock decides: a payment that comes too late, twice or in the wrong amount is to be
    refunded, and its event, too, follows those of the previous holder of the lock. Returns nothing
    if there is no such order, and an empty payment if its reference is known, or if the client has
    registered providers and this is none of them.

    An order that ended after the statement had begun is neither unpaid nor has ended: only the next
    statement sees how. For that, ``for_neither`` is "lost", and the payment is empty, with ``lost``;
    or it is the reason for which the money is due back.
    """
    registered = sa.select(provider_endpoints.c.id).where(
        provider_endpoints.c.client_id == p("for_client"), provider_endpoints.c.revoked_at.is_(None)
    )
    named = registered.where(provider_endpoints.c.provider == p("for_provider"))
    locked = lock(step, sa.select(orders.c.id).where(*OWN).scalar_subquery())
    in_time = IS_EXPIRED & (p("for_paid_at", type_=Instant) <= order_events.c.expires_at)
    ending = sa.case(
        (order_events.c.type == text_literal(EventType.PAID), text_literal("already_paid")),
        (in_time, text_literal("paid_in_time")),
        else_=text_literal("order_cancelled"),
    )
    ended = sa.select(ending).where(order_events.c.order_id == p("for_id"), TERMINAL)
    is_wrong = (orders.c.total_minor != p("for_amount")) | (orders.c.currency != p("for_currency"))
    refusal = sa.case(
        (sa.exists(registered) & ~sa.exists(named), text_literal("unregistered")),
        (locked.unpaid, sa.case((is_wrong, text_literal("wrong_amount")))),
        else_=sa.func.coalesce(ended.scalar_subquery(), p("for_neither", type_=sa.String)),
    )
    order = step(
        "own",
        sa.select(orders.c.id, refusal.label("reason"), clock().label("moment")).where(
            *OWN, locked.at_all
        ),
    )
    refused = order.c.reason.is_not(None)
    row = {
        "id": "payment_id",
        "order_id": order.c.id,
        "client_id": "for_client",
        "provider": "for_provider",
        "reference": "for_reference",
        "amount_minor": "for_amount",
        "currency": "for_currency",
        "status": sa.case((refused, text_literal("refund_due")), else_=text_literal("applied")),
        "reason": order.c.reason,
        "created_at": order.c.moment,
        "paid_at": "for_paid_at",
    }
    lost = order.c.reason == text_literal("lost")
    is_recorded = sa.func.coalesce(
        ~lost & (order.c.reason != text_literal("unregistered")), sa.true()
    )
    payment = step(
        "payment",
        insertion(payments, row, is_recorded).on_conflict_do_nothing().returning(payments),
    )
    applied = sa.select(payment.c.order_id).where(payment.c.reason.is_(None))
    paid = step("paid", _end(now()).where(one_of(unpaid_orders.c.order_id, applied)))
    end_attempts(step, paid)
    _change_stock(
        step, _reserved_by(step, paid), lambda all_, _: {"reserved": -all_, "on_hand": -all_}
    )
    at, facts, same = payment.c.created_at, money(payment), paid.c.order_id == payment.c.order_id
    because = {**facts, "reason": payment.c.reason}
    is_due = payment.c.reason.is_not(None)
    deliveries = add_events(
        step,
        event_of(payment, EventType.PAID, at, facts, same, ending=_ending_of(paid)),
        event_of(payment, EventType.REFUND_DUE, at, because, is_due, ending=NO_ENDING),
    )
    return sa.select(payment, lost.label("lost"), ids_of(deliveries)).select_from(
        order.join(payment, sa.true(), isouter=True)
    )


@Operation
def cancel(step: Step) -> sa.Select[Any]:
    """Cancel a client's own unpaid order, expired or not; returns it."""
    cancelled = step("cancelled", _end(clock()).where(*OWN_UNPAID))
    end_attempts(step, cancelled)
    deliveries = _release(step, cancelled, CancelReason.REQUESTED)
    state = sa.select(
        cancelled.c.order_id,
        cancelled.c.expires_at,
        (cancelled.c.version + 1).label("version"),
        text_literal(EventType.CANCELLED).label("ending"),
        cancelled.c.at.label("ended_at"),
        text_literal(CancelReason.REQUESTED).label("reason"),
        ids_of(deliveries),
    )
    return with_items(state.cte("state"))
