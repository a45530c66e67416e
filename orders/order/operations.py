"""What changes orders: placing, extending, paying, refunding, cancelling and expiring.

Locks are taken in one order everywhere: existing orders by id, then stock by SKU. A new order is
nobody's yet, so placing takes stock first. So operations cannot deadlock, with one exception: a
request that is repeated while the first is at work holds the stock, and finds in the index of keys
that the order was placed meanwhile and is being paid or cancelled. PostgreSQL ends that deadlock,
and the loser is run again.

An operation is one statement, which sees what was committed when it began. So it
decides by rows that it has locked: one that another transaction changed meanwhile is read as that
transaction left it, and is compared with the conditions again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert, insert

from orders.order.domain import EventType
from orders.sql.expressions import (
    Id,
    Instant,
    clock,
    ids,
    later,
    ms_until,
    now,
    one_of,
    rfc3339_text,
    text_literal,
    unindexed,
)
from orders.sql.steps import Operation, Step
from orders.sql.tables import (
    IS_UNPAID,
    UNPAID,
    api_clients,
    order_events,
    order_items,
    orders,
    payments,
    stock_items,
    webhook_deliveries,
    webhook_interests,
)
from orders.stock.domain import MAX_MINOR

p = sa.bindparam
Quantity = sa.ColumnElement[int]

#: `IS_UNPAID`, for statements that name their orders.
OPEN = unindexed(IS_UNPAID)
OWN = (orders.c.id == p("for_id"), orders.c.client_id == p("for_client"))
OWN_PAYMENT = (payments.c.id == p("for_id"), payments.c.client_id == p("for_client"))
WITH_KEY = (orders.c.client_id == p("for_client"), orders.c.idempotency_key == p("for_key"))


# -- what operations have in common --------------------------------------------------------


def client_of(client_id: sa.ColumnElement[str]) -> sa.Label[str]:
    """The name of an order's client."""
    return (
        sa.select(api_clients.c.name)
        .where(api_clients.c.id == client_id)
        .scalar_subquery()
        .label("client")
    )


def with_items(found: sa.FromClause, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The orders in ``found`` that meet the conditions, a row for each item."""
    item = (order_items.c.sku, order_items.c.quantity, order_items.c.unit_price_minor)
    return (
        sa.select(found, client_of(found.c.client_id), *item)
        .join_from(found, order_items, order_items.c.order_id == found.c.id)
        .where(
            *conditions,
            one_of(order_items.c.order_id, sa.select(found.c.id).where(*conditions)),
        )
    )


def _is_of_version() -> sa.ColumnElement[bool]:
    """Whether an order's version is in the parameter, between spaces; "*" is any version."""
    expected = p("for_versions", type_=sa.String)
    version = (
        text_literal(" ").concat(sa.cast(orders.c.version, sa.String)).concat(text_literal(" "))
    )
    return (expected == "*") | expected.contains(version)


def _cancel(reason: str) -> sa.Update:
    return sa.update(orders).values(
        status=text_literal("cancelled"),
        cancelled_at=now(),
        cancel_reason=text_literal(reason),
        version=orders.c.version + 1,
    )


def _release(step: Step, cancelled: sa.FromClause) -> sa.FromClause:
    """The steps after a cancellation: return the stock and write the events."""
    _change_stock(step, _held(step, cancelled), lambda all_, _: {"reserved": -all_})
    reason, at = {"reason": cancelled.c.cancel_reason}, cancelled.c.cancelled_at
    event = _event(cancelled.c.id, EventType.CANCELLED, at, reason)
    return _add_events(step, cancelled.c.client_id, event, owners=cancelled)


def _held(step: Step, ended: sa.FromClause) -> sa.FromClause:
    """What these orders hold of each SKU."""
    return step(
        "held",
        sa.select(order_items.c.sku, sa.func.sum(order_items.c.quantity).label("quantity"))
        .where(one_of(order_items.c.order_id, sa.select(ended.c.id)))
        .group_by(order_items.c.sku),
    )


def _in_sku_order(lines: sa.FromClause) -> sa.ColumnElement[bytes]:
    """By bytes: as text SKUs sort by the locale of a database."""
    return sa.cast(lines.c.sku, sa.LargeBinary)


def _change_stock(
    step: Step,
    lines: sa.FromClause,
    added: Callable[[Quantity, Quantity], dict[str, Quantity]],
    *conditions: sa.ColumnElement[bool],
    held: Quantity | None = None,
) -> None:
    """Add to columns of the stock what ``added`` returns for each line's quantities: in all, and
    held.

    It is an insert that always conflicts. So it finds a row by its key, whatever the planner
    estimates, and reads it as it is once its lock is held. An update would find it as it was when
    the statement began, and look up a second time each row that has changed since: two batches at
    once would take longer than one after the other.
    """
    row = {
        "sku": lines.c.sku,
        "on_hand": lines.c.quantity,
        "reserved": lines.c.quantity if held is None else held,
        "price_minor": sa.literal_column("0"),
        "currency": text_literal(""),
    }
    change = _insert(stock_items, row, *conditions, order_by=_in_sku_order(lines))
    more = added(change.excluded.on_hand, change.excluded.reserved)
    values = {name: stock_items.c[name] + some for name, some in more.items()}
    step("stock", change.on_conflict_do_update(index_elements=["sku"], set_=values))


def _money(payment: sa.FromClause) -> dict[str, sa.ColumnElement[Any]]:
    """The facts about a payment in an event."""
    return {
        "payment_id": sa.cast(payment.c.id, sa.String),
        **{name: payment.c[name] for name in ("provider", "reference", "amount_minor", "currency")},
    }


def _add_events(
    step: Step,
    client_id: sa.ColumnElement[str],
    *events: sa.Select[Any],
    owners: sa.FromClause | None = None,
    reminders: sa.ColumnElement[bool] | None = None,
) -> sa.FromClause:
    """Write events of locked orders, so that ids are in commit order, and the webhook deliveries of
    each.

    ``client_id`` is the orders' client, as an earlier step returned it; with orders of several
    clients, ``owners`` is that step. ``reminders`` says whether an event brings a reminder with it.
    Returns the ids of the deliveries.
    """
    columns = ("order_id", "type", "at", "data")
    rows = events[0] if len(events) == 1 else sa.union_all(*events)
    added = (
        insert(order_events)
        .from_select(columns, rows)
        .returning(
            order_events.c.id, order_events.c.order_id, order_events.c.type, order_events.c.at
        )
    )
    event, wish = step("events", added), webhook_interests.alias("i")
    # Filtered by client first: clients without subscriptions leave nothing to join.
    wanted = [
        wish.c.event_type == event.c.type,
        one_of(wish.c.client_id, sa.select(client_id)),
    ]
    if reminders is not None:
        wanted.append(reminders | (wish.c.type == event.c.type))
    row = {
        "subscription_id": wish.c.subscription_id,
        "order_id": event.c.order_id,
        "event_id": event.c.id,
        "type": wish.c.type,
        "created_at": event.c.at,
        "due_at": event.c.at,
    }
    source: sa.FromClause = event
    if owners is not None:
        source = event.join(owners, owners.c.id == event.c.order_id)
        wanted.append(wish.c.client_id == client_id)
    chosen = sa.select(*row.values()).select_from(source.join(wish, sa.and_(*wanted)))
    return step(
        "deliveries",
        insert(webhook_deliveries).from_select([*row], chosen).returning(webhook_deliveries.c.id),
    )


def _ids_of(deliveries: sa.FromClause) -> sa.Label[Any]:
    """The ids of all deliveries in one value, to be returned beside other columns."""
    return (
        sa.select(sa.func.json_agg(deliveries.c.id, type_=sa.JSON))
        .scalar_subquery()
        .label("deliveries")
    )


def _event(
    order_id: sa.ColumnElement[str],
    kind: EventType,
    at: sa.ColumnElement[Any],
    data: Mapping[str, sa.ColumnElement[Any]],
    *conditions: sa.ColumnElement[bool],
) -> sa.Select[Any]:
    """An event of each order."""
    pairs = (each for name, value in data.items() for each in (text_literal(name), value))
    facts = sa.func.json_build_object(*pairs) if data else sa.literal_column("'{}'::json")
    return sa.select(order_id, text_literal(kind), at, facts).where(*conditions)


def _insert(
    table: sa.Table, row: Mapping[str, Any], *conditions: Any, order_by: Any = None
) -> Insert:
    """Insert what is selected; a value that is text is the name of a parameter."""
    values = (
        p(value, type_=table.c[name].type) if isinstance(value, str) else value
        for name, value in row.items()
    )
    return insert(table).from_select(
        [*row], sa.select(*values).where(*conditions).order_by(order_by)
    )


#: Whether reminders are switched on: a parameter of the operations that set a deadline.
REMINDERS = p("reminders", value=False, type_=sa.Boolean)


# -- the operations ------------------------------------------------------------------------


@Operation
def place(step: Step) -> sa.Select[Any]:
    """Insert an order and hold its stock if all of that is available, and if its key is new.

    An order that costs nothing is paid at once, and its stock sold. Returns a row for each SKU
    that was found, with what it has to spare; and with the basket's total and why it is refused,
    the times when the order was placed and paid, or nulls, and the name of its client. Returns no
    rows if the key is already known.
    """
    quantities = sa.func.json_each_text(sa.bindparam("quantities", type_=sa.JSON))
    wanted = quantities.table_valued(sa.column("key", sa.String), "value", name="w")
    quantity = sa.cast(wanted.c.value, sa.Integer)
    lines = step(
        "lines",
        sa.select(
            stock_items.c.sku,
            stock_items.c.price_minor,
            stock_items.c.currency,
            quantity.label("quantity"),
            (stock_items.c.on_hand - stock_items.c.reserved - quantity).label("spare"),
            # As a double, which is exact up to MAX_MINOR, and does not overflow beyond it.
            (sa.cast(wanted.c.value, sa.Double) * stock_items.c.price_minor).label("amount"),
        )
        .join_from(stock_items, wanted, wanted.c.key == stock_items.c.sku)
        .where(
            one_of(stock_items.c.sku, sa.select(wanted.c.key)),
            ~sa.exists(sa.select(orders.c.id).where(*WITH_KEY)),
        )
        .order_by(_in_sku_order(stock_items))
        .with_for_update(key_share=True, of=stock_items),
    )
    total = sa.func.sum(lines.c.amount)
    currency = sa.func.min(lines.c.currency)
    zero = sa.literal_column("0", sa.Integer)
    refusal = sa.case(
        (
            (sa.func.count() != p("skus", type_=sa.Integer)) | (sa.func.min(lines.c.spare) < zero),
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
            clock().label("moment"),  # when the stock is locked, however long that took
        ),
    )
    is_free = basket.c.total == zero
    row = {
        "id": "order_id",
        "client_id": "for_client",
        "status": sa.case((is_free, text_literal("paid")), else_=UNPAID),
        "currency": basket.c.currency,
        "total_minor": sa.cast(basket.c.total, sa.BigInteger),
        "created_at": basket.c.moment,
        "paid_at": sa.case((is_free, basket.c.moment)),
        "expires_at": later(basket.c.moment, "for_ms"),
        "idempotency_key": "for_key",
        "fingerprint": "for_fingerprint",
        "timeout_ms": "for_ms",
        "client_reference": "for_reference",
        "metadata": "for_metadata",
        "pieces": basket.c.pieces,
        "origin": "for_origin",
    }
    placed = step(
        "placed",
        _insert(orders, row, basket.c.refusal.is_(None))
        .on_conflict_do_nothing()
        .returning(orders.c.id, orders.c.client_id, orders.c.created_at, orders.c.paid_at),
    )
    is_placed = sa.exists(sa.select(placed.c.id))
    is_paid = placed.c.paid_at.is_not(None)
    items = {
        "order_id": "order_id",
        "sku": lines.c.sku,
        "quantity": lines.c.quantity,
        "unit_price_minor": lines.c.price_minor,
    }
    step("items", _insert(order_items, items, is_placed))
    deliveries = _add_events(
        step,
        placed.c.client_id,
        _event(placed.c.id, EventType.CREATED, placed.c.created_at, {}),
        _event(placed.c.id, EventType.PAID, placed.c.paid_at, {}, is_paid),
        reminders=REMINDERS,
    )
    # What is paid at once is not held: it leaves the shelf.
    paid_at = sa.select(placed.c.paid_at).scalar_subquery()
    _change_stock(
        step,
        lines,
        lambda all_, held: {"reserved": held, "on_hand": held - all_},
        is_placed,
        held=sa.case((paid_at.is_(None), lines.c.quantity), else_=zero),
    )
    return sa.select(
        lines.c.sku,
        lines.c.price_minor,
        lines.c.currency,
        lines.c.spare,
        basket.c.refusal,
        basket.c.total,
        placed.c.created_at,
        placed.c.paid_at,
        client_of(p("for_client", type_=Id)),
        _ids_of(deliveries),
    ).select_from(lines.join(basket, sa.true()).join(placed, sa.true(), isouter=True))


@Operation
def extend(step: Step) -> sa.Select[Any]:
    """Move the deadline of a client's own unpaid order, if it has an expected version.

    The new deadline must be within bounds that count from the order's creation, and not be past
    when the order is locked. Returns the order, a row for each item, with the milliseconds until
    then.
    """
    deadline = p("for_deadline", type_=Instant)
    order = step(
        "own",
        sa.select(orders.c.id, orders.c.expires_at)
        .where(
            *OWN,
            OPEN,
            _is_of_version(),
            deadline >= later(orders.c.created_at, "for_min_ms"),
            deadline <= later(orders.c.created_at, "for_max_ms"),
            deadline >= clock(),
        )
        .with_for_update(key_share=True),
    )
    extended = step(
        "extended",
        sa.update(orders)
        .where(one_of(orders.c.id, sa.select(order.c.id)), OPEN)
        .values(expires_at=deadline, version=orders.c.version + 1)
        .returning(orders),
    )
    facts = {
        "previous_expires_at": rfc3339_text(order.c.expires_at),
        "expires_at": rfc3339_text(extended.c.expires_at),
    }
    same = order.c.id == extended.c.id
    deliveries = _add_events(
        step,
        extended.c.client_id,
        _event(extended.c.id, EventType.EXTENDED, now(), facts, same),
        reminders=REMINDERS,
    )
    left = ms_until(extended.c.expires_at, clock()).label("ms")
    return with_items(extended).add_columns(left, _ids_of(deliveries))


@Operation
def pay(step: Step) -> sa.Select[Any]:
    """Record a payment for a client's own order, and the order as paid if it is unpaid.

    The order's lock decides: a payment that comes too late, twice or in the wrong amount is to be
    refunded, and its event, too, follows those of the previous holder of the lock. Returns nothing
    if there is no such order, and an empty payment if its reference is known.
    """
    order = step(
        "own",
        sa.select(
            orders.c.id,
            sa.case(
                (orders.c.status == text_literal("cancelled"), text_literal("order_cancelled")),
                (~IS_UNPAID, text_literal("already_paid")),
                (
                    (orders.c.total_minor != p("for_amount"))
                    | (orders.c.currency != p("for_currency")),
                    text_literal("wrong_amount"),
                ),
            ).label("reason"),
        )
        .where(*OWN)
        .with_for_update(key_share=True),
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
        "created_at": now(),
    }
    payment = step(
        "payment",
        _insert(payments, row, sa.true()).on_conflict_do_nothing().returning(payments),
    )
    paid = step(
        "paid",
        sa.update(orders)
        .where(
            one_of(orders.c.id, sa.select(payment.c.order_id).where(payment.c.status == "applied")),
            OPEN,
        )
        .values(status=text_literal("paid"), paid_at=now(), version=orders.c.version + 1)
        .returning(orders.c.id),
    )
    _change_stock(step, _held(step, paid), lambda all_, _: {"reserved": -all_, "on_hand": -all_})
    at, reason, facts = payment.c.created_at, payment.c.reason, _money(payment)
    because = {**facts, "reason": reason}
    deliveries = _add_events(
        step,
        payment.c.client_id,
        _event(payment.c.order_id, EventType.PAID, at, facts, reason.is_(None)),
        _event(payment.c.order_id, EventType.REFUND_DUE, at, because, reason.is_not(None)),
    )
    return sa.select(payment, _ids_of(deliveries)).select_from(
        order.join(payment, sa.true(), isouter=True)
    )


@Operation
def refund(step: Step) -> sa.Select[Any]:
    """Record that a refund was sent; returns the payment if it was still to be refunded.

    Its order is locked, so that its events are in commit order.
    """
    order_id = sa.select(payments.c.order_id).where(*OWN_PAYMENT).scalar_subquery()
    order = step(
        "own",
        sa.select(orders.c.id).where(orders.c.id == order_id).with_for_update(key_share=True),
    )
    refunded = step(
        "refunded",
        sa.update(payments)
        .where(
            *OWN_PAYMENT,
            payments.c.status == text_literal("refund_due"),
            one_of(payments.c.order_id, sa.select(order.c.id)),
        )
        .values(
            status=text_literal("refunded"), refunded_at=now(), refund_reference=p("for_reference")
        )
        .returning(payments),
    )
    facts = {**_money(refunded), "refund_reference": refunded.c.refund_reference}
    at = refunded.c.refunded_at
    event = _event(refunded.c.order_id, EventType.REFUNDED, at, facts)
    return sa.select(refunded, _ids_of(_add_events(step, refunded.c.client_id, event)))


@Operation
def cancel(step: Step) -> sa.Select[Any]:
    """Cancel a client's own unpaid order, expired or not; returns it, a row for each item."""
    cancelled = step("cancelled", _cancel("requested").where(*OWN, OPEN).returning(orders))
    deliveries = _release(step, cancelled)
    return with_items(cancelled).add_columns(_ids_of(deliveries))


def _expire(step: Step, *, in_detail: bool) -> sa.Select[Any]:
    overdue = step(
        "overdue",
        sa.select(orders.c.id)
        .where(one_of(orders.c.id, ids("ids")), OPEN, orders.c.expires_at <= now())
        .order_by(orders.c.id)
        .with_for_update(key_share=True, skip_locked=True),
    )
    detail = (orders.c.expires_at, orders.c.origin) if in_detail else ()
    cancelled = step(
        "cancelled",
        _cancel("expired")
        .where(one_of(orders.c.id, sa.select(overdue.c.id)), OPEN)
        .returning(
            orders.c.id,
            orders.c.client_id,
            orders.c.cancelled_at,
            orders.c.cancel_reason,
            *detail,
        ),
    )
    deliveries = _release(step, cancelled)
    rest = sa.except_(ids("ids"), sa.select(cancelled.c.id)).subquery("rest")
    left = _found("unpaid", orders.c.id, ms_until(orders.c.expires_at)).where(
        one_of(orders.c.id, sa.select(rest)), OPEN
    )
    count = _found("count", sa.null(), sa.func.count()).select_from(cancelled)
    sent = _found("delivery", deliveries.c.id, sa.null())
    if not in_detail:
        return sa.select(sa.union_all(left, sent, count).subquery("found"))
    late_ms = ms_until(cancelled.c.cancelled_at, cancelled.c.expires_at)
    each = _found("cancelled", cancelled.c.id, late_ms, cancelled.c.origin)
    return sa.select(sa.union_all(left, sent, count, each).subquery("found"))


def _found(
    kind: str,
    row_id: sa.ColumnElement[Any],
    ms: sa.ColumnElement[Any],
    origin: sa.ColumnElement[Any] | None = None,
) -> sa.Select[Any]:
    """Rows of one kind among those that `expire` returns."""
    return sa.select(
        text_literal(kind).label("kind"),
        row_id.label("id"),
        ms.label("ms"),
        (sa.cast(sa.null(), sa.String) if origin is None else origin).label("origin"),
    )


@Operation
def expire(step: Step) -> sa.Select[Any]:
    """Cancel the orders of a batch that are unpaid past their deadline.

    An order that is locked, because somebody is paying it, is skipped, not waited for; one that was
    paid after the statement began and before it took the lock is no longer unpaid. Returns rows of
    three kinds: ``unpaid``, an order that still is, with the milliseconds until it expires, negative
    if it was skipped; ``delivery``, the id of a webhook delivery; and ``count``, how many orders
    were cancelled, in ms.
    """
    return _expire(step, in_detail=False)


@Operation
def expire_in_detail(step: Step) -> sa.Select[Any]:
    """Like `expire`; also returns rows of the kind ``cancelled``: an order, by how many milliseconds
    it was late, and its origin.
    """
    return _expire(step, in_detail=True)
