"""Orders."""

from typing import Any

from werkzeug.exceptions import BadRequest

from orders import errors
from orders.http.auth import caller, location, may, page, reader, replay_header, services
from orders.http.headers import origin
from orders.http.routes.preconditions import etag, expected_versions
from orders.http.routing import Routes, answers
from orders.http.schemas.orders import (
    DeadlineIn,
    EventsOut,
    EventsQuery,
    IdempotencyIn,
    OrderChangeIn,
    OrderIn,
    OrderOut,
    OrdersOut,
    OrdersQuery,
    OrderWhyOut,
)
from orders.order.domain import NewOrder, OrderStatus

orders = Routes(
    "orders", "Orders", "An order reserves its stock until it is paid, cancelled or expired."
)


@orders.post("/orders", returns=OrderOut, status=201, scopes=["orders"])
@answers(
    *(errors.KeyInFlight, errors.KeyReused, errors.MixedCurrencies, errors.OutOfStock),
    *(errors.TimeoutOutOfRange, errors.TotalTooLarge, errors.UnknownSku),
    sends=["Location", "ETag", "Idempotent-Replayed"],
)
def create_order(header: IdempotencyIn, body: OrderIn) -> Any:
    """Place an order and reserve its stock.

    An order that costs nothing is paid at once. An order's items never change: to change a basket, cancel
    the order, then place another with a new key.
    """
    new = NewOrder(
        client_id=caller(),
        key=header.idempotency_key,
        fingerprint=body.fingerprint(),
        quantities={item.sku: item.quantity for item in body.items},
        origin=str(origin()),
        **body.model_dump(exclude={"items"}),
    )
    placed = services().orders.place(new)
    headers = {
        **location(placed.order.id),
        **etag(placed.order.version),
        **replay_header(placed.replayed),
    }
    return placed.order, headers


@orders.get("/orders", returns=OrdersOut, scopes=["orders", "ops"])
@answers(errors.ClientNotFound)
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
    """The id of the client whose orders are listed; None: all clients'. Raises Forbidden, ClientNotFound."""
    if name is None:
        return caller() if may("orders") else None
    if not may("ops"):
        raise errors.Forbidden("To name a client, it needs the scope ops.")
    return services().clients.id_of(name)


@orders.get("/orders/<uuid:order_id>", returns=OrderWhyOut, scopes=["orders", "ops"])
@answers(errors.OrderNotFound, sends=["ETag"])
def get_order(order_id: str) -> Any:
    """One order.

    A key with the scope `ops` also learns why it is still unpaid.
    """
    order = services().orders.order(reader(), order_id)
    if order.status is not OrderStatus.UNPAID or not may("ops"):
        return order, etag(order.version)
    found = OrderWhyOut.model_validate(order)
    found.why_unpaid = services().hooks.causes(order_id, services().engine)
    return found, etag(order.version)


@orders.patch("/orders/<uuid:order_id>", returns=OrderOut, scopes=["orders"])
@answers(
    *(errors.AlreadyPaid, errors.OrderCancelled, errors.OrderNotFound),
    *(errors.PreconditionFailed, errors.PreconditionRequired, errors.TimeoutOutOfRange),
    takes=["If-Match"],
    sends=["ETag"],
)
def extend_order(order_id: str, body: OrderChangeIn) -> Any:
    """Move an unpaid order's deadline, or change any order's metadata.

    The deadline moves later or earlier, within the bounds for timeouts. `client_reference` and `metadata`
    change everywhere the order is shown, including as it was placed; null erases them. Send If-Match with
    the order's ETag.
    """
    change, versions = body.root, expected_versions()
    if isinstance(change, DeadlineIn):
        order = services().orders.extend(
            caller(), order_id, expires_at=change.expires_at, versions=versions
        )
    else:
        given = change.model_dump(exclude_unset=True)
        order = services().orders.describe(caller(), order_id, given, versions=versions)
    return order, etag(order.version)


@orders.get("/orders/<uuid:order_id>/events", returns=EventsOut, scopes=["orders", "ops"])
@answers(errors.OrderNotFound)
def list_events(order_id: str, query: EventsQuery) -> Any:
    """What happened to an order, oldest first."""
    found = services().orders.events(
        reader(), order_id, after_id=query.after_id or 0, page_size=query.limit
    )
    return page(found, query)


@orders.post("/orders/<uuid:order_id>/cancel", returns=OrderOut, scopes=["orders"])
@answers(errors.AlreadyPaid, errors.OrderNotFound, sends=["ETag"])
def cancel_order(order_id: str) -> Any:
    """Cancel an unpaid order.

    Cancelling it again changes nothing.
    """
    order = services().orders.cancel(caller(), order_id)
    return order, etag(order.version)
