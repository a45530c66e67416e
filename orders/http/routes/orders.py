"""Orders."""

from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint
from flask import url_for
from werkzeug.exceptions import BadRequest

from orders.errors import (
    AlreadyPaid,
    ClientNotFound,
    Forbidden,
    KeyInFlight,
    KeyReused,
    MixedCurrencies,
    OrderCancelled,
    OrderNotFound,
    OutOfStock,
    PreconditionFailed,
    PreconditionRequired,
    StockBusy,
    TimeoutOutOfRange,
    TooManyHeldPieces,
    TooManyUnpaidOrders,
    TotalTooLarge,
    UnknownOrder,
    UnknownSku,
)
from orders.http.auth import auth, caller, may, page, reader, replay_header, services
from orders.http.contract import raises, sends, takes
from orders.http.headers import origin
from orders.http.routes.preconditions import etag, expected_versions
from orders.http.schemas.orders import (
    DeadlineIn,
    EventsOut,
    EventsQuery,
    FeedOut,
    FeedQuery,
    IdempotencyIn,
    OrderChangeIn,
    OrderIn,
    OrderOut,
    OrdersOut,
    OrdersQuery,
)
from orders.order.domain import NewOrder

orders = APIBlueprint(
    "orders",
    __name__,
    url_prefix="/v1",
    tag={
        "name": "Orders",
        "description": "An order holds its stock until it is paid, cancelled or expired.",
    },
)

CANCELLED = {
    "status": "cancelled",
    "cancelled_at": "2026-11-22T09:45:00.000Z",
    "cancel_reason": "requested",
    "version": 2,
}
EXTENDED = {"expires_at": "2030-01-31T12:30:00.000Z", "version": 2}


@orders.post("/orders")
@orders.auth_required(auth, roles=["orders"])
@orders.input(IdempotencyIn, location="headers", arg_name="header")
@orders.input(OrderIn, arg_name="body")
@orders.output(OrderOut, HTTPStatus.CREATED)
@raises(
    *(AlreadyPaid, KeyInFlight, KeyReused, MixedCurrencies, OrderCancelled, OutOfStock, StockBusy),
    *(TimeoutOutOfRange, TooManyHeldPieces, TooManyUnpaidOrders, TotalTooLarge),
    *(UnknownOrder, UnknownSku),
)
@sends("Location", "ETag", "Idempotent-Replayed")
def create_order(header: IdempotencyIn, body: OrderIn) -> Any:
    """Place an order and hold its stock.

    An order that costs nothing is paid at once. With `replaces`, an unpaid order of yours is cancelled in
    the same moment, and this one may have the pieces that it held; if anything is refused, it stays.
    """
    new = NewOrder(
        client_id=caller(),
        key=header.idempotency_key,
        fingerprint=body.fingerprint(),
        quantities={item.sku: item.quantity for item in body.items},
        origin=origin(),
        **body.model_dump(exclude={"items"}),
    )
    placed = services().orders.place(new)
    headers = {
        "Location": url_for("orders.get_order", order_id=placed.order.id),
        **etag(placed.order.version),
        **replay_header(placed.replayed),
    }
    return placed.order, HTTPStatus.CREATED, headers


@orders.get("/orders")
@orders.auth_required(auth, roles=["orders", "ops"])
@orders.input(OrdersQuery, location="query", arg_name="query")
@orders.output(OrdersOut)
@raises(ClientNotFound)
def list_orders(query: OrdersQuery) -> Any:
    """Your orders.

    Newest first, or with `expires_before` those with the latest deadline first. A key with the scope
    `ops` can list another client's orders with `client`. Without `client`, and without the scope
    `orders`, it lists all clients' orders, which cannot be filtered.
    """
    client_id = _listed(query.client)
    if client_id is None:
        if query.filters:
            raise BadRequest(f"With {', '.join(query.filters)}, name a client too: client=NAME")
        found = services().orders.all_orders(page_size=query.limit, after=query.after)
    else:
        found = services().orders.orders(
            client_id, page_size=query.limit, after=query.after, **query.filters
        )
    return page(found, query)


def _listed(name: str | None) -> str | None:
    """The id of the client whose orders are listed; None: everybody's. Raises Forbidden, ClientNotFound."""
    if name is None:
        return caller() if may("orders") else None
    if not may("ops"):
        raise Forbidden("To name a client, it needs the scope ops.")
    return services().clients.id_of(name)


@orders.get("/orders/<uuid:order_id>")
@orders.auth_required(auth, roles=["orders", "ops"])
@orders.output(OrderOut)
@raises(OrderNotFound)
def get_order(order_id: object) -> Any:
    """One order."""
    order = services().orders.order(reader(), str(order_id))
    return order, HTTPStatus.OK, etag(order.tag)


@orders.patch("/orders/<uuid:order_id>")
@orders.auth_required(auth, roles=["orders"])
@orders.input(OrderChangeIn, arg_name="body")
@orders.output(OrderOut, example=EXTENDED)
@raises(
    *(AlreadyPaid, OrderCancelled, OrderNotFound),
    *(PreconditionFailed, PreconditionRequired, TimeoutOutOfRange),
)
@takes("If-Match")
@sends("ETag")
def extend_order(order_id: object, body: OrderChangeIn) -> Any:
    """Move an unpaid order's deadline, or change any order's metadata.

    The deadline moves later or earlier, within the bounds for timeouts. `client_reference` and `metadata`
    change everywhere the order is shown, including as it was placed; null erases them. Send If-Match with
    the order's ETag.
    """
    change, versions = body.root, expected_versions()
    if isinstance(change, DeadlineIn):
        order = services().orders.extend(
            caller(), str(order_id), expires_at=change.expires_at, versions=versions
        )
    else:
        given = change.model_dump(exclude_unset=True)
        order = services().orders.describe(caller(), str(order_id), given, versions=versions)
    return order, HTTPStatus.OK, etag(order.tag)


@orders.get("/orders/<uuid:order_id>/events")
@orders.auth_required(auth, roles=["orders", "ops"])
@orders.input(EventsQuery, location="query", arg_name="query")
@orders.output(EventsOut)
@raises(OrderNotFound)
def list_events(order_id: object, query: EventsQuery) -> Any:
    """What happened to an order, oldest first."""
    found = services().orders.events(
        reader(), str(order_id), after_id=query.after_id, page_size=query.limit
    )
    return page(found, query)


@orders.get("/events")
@orders.auth_required(auth, roles=["orders"])
@orders.input(FeedQuery, location="query", arg_name="query")
@orders.output(FeedOut)
@raises()
def list_all_events(query: FeedQuery) -> Any:
    """All events of your orders.

    In the order of `sequence`, and complete: no event is ever added before one that was listed. If you keep
    the `sequence` of the last event that you read from this list, you miss none, even if webhooks were lost.
    """
    found = services().feed.events(caller(), after_id=query.after_id, page_size=query.limit)
    return page(found, query)


@orders.post("/orders/<uuid:order_id>/cancel")
@orders.auth_required(auth, roles=["orders"])
@orders.output(OrderOut, example=CANCELLED)
@raises(AlreadyPaid, OrderNotFound)
@sends("ETag")
def cancel_order(order_id: object) -> Any:
    """Cancel an unpaid order.

    Cancelling it again changes nothing.
    """
    order = services().orders.cancel(caller(), str(order_id))
    return order, HTTPStatus.OK, etag(order.version)
