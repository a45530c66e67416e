"""The state of orders: what is stored of it, and how orders are read with it.

An unpaid order has a row in `unpaid_orders`; one that has ended, a terminal event.
"""

from functools import cache
from typing import Any

import sqlalchemy as sa

from orders.order.domain import EventType, OrderStatus
from orders.sql.expressions import Id, Instant, one_of, text_literal
from orders.sql.steps import Operation
from orders.sql.tables import (
    TERMINAL,
    api_clients,
    cancel_reason,
    order_events,
    order_items,
    orders,
    unpaid_orders,
)

p = sa.bindparam


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
    """The state of orders that have ended: their terminal events."""
    return sa.select(
        order_events.c.order_id,
        order_events.c.expires_at,
        order_events.c.version,
        order_events.c.type.label("ending"),
        order_events.c.at.label("ended_at"),
        cancel_reason.label("reason"),
    ).where(TERMINAL)


def in_state(state: sa.FromClause, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """The orders in ``state``, with it."""
    columns = (each for each in state.c if each.name != "order_id")
    return (
        sa.select(orders, *columns, *more)
        .join_from(orders, state, state.c.order_id == orders.c.id)
        .where(one_of(orders.c.id, sa.select(state.c.order_id)))
    )


def with_items(found: sa.Select[Any]) -> sa.Select[Any]:
    """The orders that are found, a row for each item, with the name of their client."""
    order = found.cte("found")
    item = (order_items.c.sku, order_items.c.quantity, order_items.c.unit_price_minor)
    return (
        sa.select(order, client_of(order.c.client_id), *item)
        .join_from(order, order_items, order_items.c.order_id == order.c.id)
        .where(one_of(order_items.c.order_id, sa.select(order.c.id)))
    )


#: How an order ends, by its terminal event.
ENDINGS = {EventType.PAID: OrderStatus.PAID, EventType.CANCELLED: OrderStatus.CANCELLED}


def in_status(status: OrderStatus) -> tuple[sa.Table, sa.Select[Any]]:
    """Where the orders of a status are found, and what selects them."""
    if status is OrderStatus.UNPAID:
        return unpaid_orders, unpaid_state()
    [kind] = (kind for kind, ending in ENDINGS.items() if ending is status)
    return order_events, ended_state().where(order_events.c.type == text_literal(kind))


def state_of(row: sa.Row[Any]) -> dict[str, Any]:
    """The fields of an order that change, from the columns of `operations.in_state`."""
    status = OrderStatus.UNPAID if row.ending is None else ENDINGS[row.ending]
    return {
        "status": status,
        "expires_at": row.expires_at,
        "version": row.version,
        "paid_at": row.ended_at if status is OrderStatus.PAID else None,
        "cancelled_at": row.ended_at if status is OrderStatus.CANCELLED else None,
        "cancel_reason": row.reason,
    }


def listed(*pages: sa.Select[Any], by: str = "order_id") -> sa.Select[Any]:
    """The first page of the orders in several lists, each of which is sorted by ``by``, latest first.

    Each is read from an index in the order of the list, so that a page costs the same however many
    orders there are, with or without statistics.
    """
    parts = [
        page.order_by(
            *(page.selected_columns[name].desc() for name in dict.fromkeys((by, "order_id")))
        )
        .limit(p("page_size"))
        .subquery()
        for page in pages
    ]
    found = sa.union_all(*map(sa.select, parts)).subquery()
    last = (found.c[name].desc() for name in dict.fromkeys((by, "order_id")))
    return sa.select(found).order_by(*last).limit(p("page_size"))


@cache
def list_orders(status: str | None, given: frozenset[str]) -> Operation:
    """A page of a client's orders of a status, or of any, with the bounds that are given.

    Newest first, or with ``expires_before`` latest deadline first. ``last`` is where the page before
    ended.
    """
    by = "expires_at" if "expires_before" in given else "order_id"
    pages = []
    for one in [OrderStatus(status)] if status else OrderStatus:
        table, page = in_status(one)
        last_id = p("last_id", type_=Id)
        last = sa.tuple_(p("last_at", type_=Instant), last_id)
        bounds = {
            # The ids are in the order of creation.
            "created_after": table.c.order_id >= p("first_id", type_=Id),
            "expires_after": table.c.expires_at > p("after", type_=Instant),
            "expires_before": table.c.expires_at < p("before", type_=Instant),
            "client_reference": table.c.client_reference == p("reference", type_=sa.String),
            "last": table.c.order_id < last_id
            if by == "order_id"
            else sa.tuple_(table.c.expires_at, table.c.order_id) < last,
        }
        page = page.where(table.c.client_id == p("for_client"))
        pages.append(page.where(*(bounds[name] for name in sorted(given))))
    state = listed(*pages, by=by).cte("page")
    query = in_state(state, client_of(p("for_client", type_=Id))).order_by(
        *(state.c[name].desc() for name in dict.fromkeys((by, "order_id")))
    )
    return Operation(lambda _: query)
