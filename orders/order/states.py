"""The state of orders: what is stored of it, and how orders are read with it.

An unpaid order has a row in `unpaid_orders`; one that has ended, a terminal event.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from orders.order.domain import EventType, OrderStatus
from orders.sql.expressions import Id, Instant, one_of, text_literal
from orders.sql.steps import Operation
from orders.sql.tables import (
    ENDS,
    api_clients,
    cancel_reason,
    order_events,
    order_items,
    orders,
    payments,
    unpaid_orders,
)

p = sa.bindparam
#: The columns of an item: see `orders.order.domain.Item`.
ITEM = ("sku", "quantity", "unit_price_minor")


def client_of(client_id: sa.ColumnElement[str]) -> sa.Label[str]:
    """The name of an order's client."""
    return (
        sa.select(api_clients.c.name)
        .where(api_clients.c.id == client_id)
        .scalar_subquery()
        .label("client")
    )


def unpaid_state(unpaid: sa.FromClause = unpaid_orders) -> sa.Select[Any]:
    """The state of orders that are unpaid: how they end is null."""
    text, moment = sa.cast(sa.null(), sa.String), sa.cast(sa.null(), Instant)
    return sa.select(
        unpaid.c.order_id,
        unpaid.c.expires_at,
        unpaid.c.version,
        text.label("ending"),
        moment.label("ended_at"),
        text.label("reason"),
    )


def ended_state() -> sa.Select[Any]:
    """The state of orders that have ended, if only their terminal events are selected."""
    return sa.select(
        order_events.c.order_id,
        order_events.c.expires_at,
        order_events.c.version,
        order_events.c.type.label("ending"),
        order_events.c.at.label("ended_at"),
        cancel_reason.label("reason"),
    )


def refunded_minor(ending: sa.ColumnElement[str], order_id: sa.ColumnElement[str]) -> sa.Label[int]:
    """How much was sent back of the money that paid an order, by how the order ended."""
    found = sa.select(sa.cast(sa.func.sum(payments.c.refunded_minor), sa.BigInteger)).where(
        payments.c.order_id == order_id,
        payments.c.reason.is_(None),
        payments.c.refunded_minor > sa.literal_column("0"),  # for the index
    )
    returned = sa.case((ending == text_literal(EventType.PAID), found.scalar_subquery()))
    return returned.label("refunded_minor")


_item = (each for item in order_items.c[ITEM] for each in (text_literal(item.name), item))
#: An order's items, in one value, so that they are read in the statement that reads the order.
ITEMS = (
    sa.select(sa.func.json_agg(sa.func.json_build_object(*_item), type_=sa.JSON))
    .where(order_items.c.order_id == orders.c.id)
    .correlate(orders)
    .scalar_subquery()
    .label("items")
)


def placed(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Orders as they were placed."""
    return sa.select(orders, client_of(orders.c.client_id), ITEMS).where(*conditions)


def in_state(state: sa.FromClause, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """The orders in ``state``, with it."""
    columns = (each for each in state.c if each.name != "order_id")
    return (
        sa.select(orders, *columns, refunded_minor(state.c.ending, orders.c.id), *more)
        .join_from(orders, state, state.c.order_id == orders.c.id)
        .where(one_of(orders.c.id, sa.select(state.c.order_id)))
    )


def with_items(
    state: sa.FromClause, client_id: sa.ColumnElement[str] = orders.c.client_id
) -> sa.Select[Any]:
    """The same with all that an order has; all of one client, if its id is given."""
    return in_state(state, client_of(client_id), ITEMS)


def with_placed(events: sa.Select[Any]) -> sa.Select[Any]:
    """A page of events, each with its number, and with the order as it was placed if that is what happened."""
    page = events.cte("page")
    is_first = page.c.type == text_literal(EventType.CREATED)
    order = placed(one_of(orders.c.id, sa.select(page.c.order_id).where(is_first))).subquery()
    own = (each for each in page.c if each.name not in order.c)
    return (
        sa.select(page.c.id.label("sequence"), *own, order)
        .select_from(page.outerjoin(order, is_first & (order.c.id == page.c.order_id)))
        .order_by(page.c.id)
    )


#: How an order ends, by its terminal event.
ENDINGS = {EventType.PAID: OrderStatus.PAID, EventType.CANCELLED: OrderStatus.CANCELLED}


def status_of(row: sa.Row[Any]) -> OrderStatus:
    """An order's status, from the columns of `in_state`."""
    return OrderStatus.UNPAID if row.ending is None else ENDINGS[row.ending]


def state_of(row: sa.Row[Any]) -> dict[str, Any]:
    """The fields of an order that change, from the same columns."""
    status = status_of(row)
    return {
        "status": status,
        "expires_at": row.expires_at,
        "version": row.version,
        "paid_at": row.ended_at if status is OrderStatus.PAID else None,
        "cancelled_at": row.ended_at if status is OrderStatus.CANCELLED else None,
        "cancel_reason": row.reason,
        "refunded_minor": row.refunded_minor or 0,
    }


def listed(*pages: sa.Select[Any], by: Sequence[str]) -> sa.Select[Any]:
    """The first page of the orders in several lists, each of which is sorted by ``by``, latest first."""
    parts = [
        page.order_by(*_latest_first(page.get_final_froms()[0], by))
        .limit(p("page_size"))
        .subquery()
        for page in pages
    ]
    found = sa.union_all(*map(sa.select, parts)).subquery()
    return sa.select(found).order_by(*_latest_first(found, by)).limit(p("page_size"))


def _latest_first(found: sa.FromClause, by: Sequence[str]) -> Iterator[sa.ColumnElement[Any]]:
    return (found.c[name].desc() for name in by if name in found.c)


@cache
def list_orders(status: str | None, given: frozenset[str]) -> Operation:
    """A page of a client's orders of a status, or of any, with the bounds that are given.

    Newest first, or with ``expires_before`` latest deadline first. ``last`` is where the page before
    ended. Each status is read from an index in the order of the list, so that a page costs the same
    however many orders there are, with or without statistics.
    """
    by = ["client_id", "type", *(["expires_at"] if "expires_before" in given else []), "order_id"]
    if "client_reference" in given:
        by.insert(0, "client_reference")
    pages = []
    if status in (None, OrderStatus.UNPAID):
        pages.append(unpaid_state().where(*_within(unpaid_orders, {}, given)))
    for kind, ending in ENDINGS.items():
        if status in (None, ending):
            page = ended_state().where(*_within(order_events, {"type": text_literal(kind)}, given))
            pages.append(page if "client_reference" in given else page.where(ENDS))
    state = listed(*pages, by=by).cte("page")
    found = with_items(state, p("for_client", type_=Id))
    return Operation(lambda _: found.order_by(*_latest_first(state, by)))


def _within(
    table: sa.Table, kind: Mapping[str, sa.ColumnElement[str]], given: frozenset[str]
) -> Iterator[sa.ColumnElement[bool]]:
    """The bounds of a list, as row comparisons.

    Only the list's own index has these columns in this order. With plain equalities a planner would
    also consider the primary key: it would read that from its end and skip other clients' orders.
    """
    same: dict[str, sa.ColumnElement[Any]] = {"client_id": p("for_client", type_=Id), **kind}
    if "client_reference" in given:
        yield table.c.client_reference.is_not(None)  # for the index
        same = {"client_reference": p("reference", type_=sa.String), **same}

    def row(**more: sa.ColumnElement[Any]) -> tuple[sa.Tuple, sa.Tuple]:
        values = {**same, **more}
        return sa.tuple_(*(table.c[name] for name in values)), sa.tuple_(*values.values())

    columns, values = row()
    yield columns >= values
    yield columns <= values
    first_id, last_id = p("first_id", type_=Id), p("last_id", type_=Id)
    if "expires_before" not in given:
        if "created_after" in given:  # the ids are in the order of creation
            columns, values = row(order_id=first_id)
            yield columns >= values
        for name, bound in (("created_before", p("before_id", type_=Id)), ("last", last_id)):
            if name in given:
                columns, values = row(order_id=bound)
                yield columns < values
        return
    columns, values = row(expires_at=p("before", type_=Instant))
    yield columns < values
    if "created_after" in given:  # an order expires after it was created
        columns, values = row(expires_at=p("after", type_=Instant))
        yield columns > values
        yield table.c.order_id >= first_id
    if "last" in given:
        columns, values = row(expires_at=p("last_at", type_=Instant), order_id=last_id)
        yield columns < values
