"""Orders."""

from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint
from flask import url_for

from orders.routes.shared import auth, caller, page, replay_header, services
from orders.schemas.orders import (
    EventsOut,
    EventsQuery,
    IdempotencyIn,
    OrderIn,
    OrderOut,
    OrdersOut,
    OrdersQuery,
)
from orders.schemas.paging import encoded

orders = APIBlueprint("orders", __name__, url_prefix="/v1", tag="Orders")


@orders.post("/orders")
@orders.auth_required(auth, roles=["orders"])
@orders.input(IdempotencyIn, location="headers", arg_name="header")
@orders.input(OrderIn, arg_name="body")
@orders.output(OrderOut, HTTPStatus.CREATED)
def create_order(header: IdempotencyIn, body: OrderIn) -> Any:
    """Place an order and hold its stock."""
    placed = services().orders.place(
        caller(),
        key=header.idempotency_key,
        fingerprint=body.fingerprint(),
        quantities={item.sku: item.quantity for item in body.items},
        timeout_seconds=body.timeout_seconds,
    )
    location = url_for("orders.get_order", order_id=placed.order.id)
    return (
        placed.order,
        HTTPStatus.CREATED,
        {"Location": location, **replay_header(placed.replayed)},
    )


@orders.get("/orders")
@orders.auth_required(auth, roles=["orders"])
@orders.input(OrdersQuery, location="query", arg_name="query")
@orders.output(OrdersOut)
def list_orders(query: OrdersQuery) -> Any:
    """Your orders: newest first, or with expires_before those with the latest deadline first."""
    found = services().orders.orders(
        caller(),
        page_size=query.limit,
        status=query.status,
        created_after=query.created_after,
        expires_before=query.expires_before,
        after=query.after,
    )
    return page(found, query)


@orders.get("/orders/<uuid:order_id>")
@orders.auth_required(auth, roles=["orders"])
@orders.output(OrderOut)
def get_order(order_id: object) -> Any:
    """One order."""
    return services().orders.order(caller(), str(order_id))


@orders.get("/orders/<uuid:order_id>/events")
@orders.auth_required(auth, roles=["orders"])
@orders.input(EventsQuery, location="query", arg_name="query")
@orders.output(EventsOut)
def list_events(order_id: object, query: EventsQuery) -> Any:
    """What happened to an order, oldest first."""
    found = services().orders.events(
        caller(), str(order_id), after_id=query.after_id, page_size=query.limit
    )
    more = len(found) == query.limit
    return {"data": found, "next_cursor": encoded(found[-1].id) if more else None}


@orders.post("/orders/<uuid:order_id>/cancel")
@orders.auth_required(auth, roles=["orders"])
@orders.output(OrderOut)
def cancel_order(order_id: object) -> Any:
    """Cancel an unpaid order. Cancelling it again changes nothing."""
    return services().orders.cancel(caller(), str(order_id))
