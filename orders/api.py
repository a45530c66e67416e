"""The HTTP API: parse, call one method of the service, render."""

from http import HTTPStatus
from typing import Any

import structlog
from apiflask import APIBlueprint, HTTPTokenAuth
from flask import current_app, url_for
from flask.typing import ResponseReturnValue

from orders import schemas
from orders.bootstrap import Services
from orders.domain import Client
from orders.errors import Forbidden, StorageUnavailable

log = structlog.get_logger("orders")


class KeyAuth(HTTPTokenAuth):
    """Says which scope a key lacks."""

    def authorize(self, role: Any, user: Any, auth: Any) -> bool:
        if not super().authorize(role, user, auth):
            needed = " or ".join(role)
            raise Forbidden(f"It needs the scope {needed}.")
        return True


auth = KeyAuth(description="An API key: flask --app orders.app keys create NAME --scope orders")
orders = APIBlueprint("orders", __name__, url_prefix="/v1", tag="Orders")
payments = APIBlueprint("payments", __name__, url_prefix="/v1", tag="Payments")
stock = APIBlueprint("stock", __name__, url_prefix="/v1", tag="Stock")
health = APIBlueprint("health", __name__, tag="Health")


def services() -> Services:
    """What the application was wired with."""
    wired: Services = current_app.extensions["orders"]
    return wired


@auth.verify_token  # type: ignore[untyped-decorator]  # Flask-HTTPAuth has no types
def verify(token: str) -> Client | None:
    return services().clients.authenticate(token) if token else None


@auth.get_user_roles  # type: ignore[untyped-decorator]
def scopes(client: Client) -> list[str]:
    return sorted(client.scopes)


def caller() -> str:
    """The id of the client whose key came with the request."""
    client = auth.current_user
    assert isinstance(client, Client)
    return client.id


def _page(found: list[Any], query: Any) -> dict[str, Any]:
    more = len(found) == query.limit
    return {"data": found, "next_cursor": query.cursor_after(found[-1]) if more else None}


def _replayed(replayed: bool) -> dict[str, str]:  # noqa: FBT001  it is what the word says
    return {"Idempotent-Replayed": "true"} if replayed else {}


@orders.post("/orders")
@orders.auth_required(auth, roles=["orders"])
@orders.input(schemas.IdempotencyIn, location="headers", arg_name="header")
@orders.input(schemas.OrderIn, arg_name="body")
@orders.output(schemas.OrderOut, HTTPStatus.CREATED)
def create_order(header: schemas.IdempotencyIn, body: schemas.OrderIn) -> Any:
    """Place an order and hold its stock."""
    placed = services().orders.place(
        caller(),
        key=header.idempotency_key,
        fingerprint=body.fingerprint(),
        quantities={item.sku: item.quantity for item in body.items},
        timeout_seconds=body.timeout_seconds,
    )
    location = url_for("orders.get_order", order_id=placed.order.id)
    return placed.order, HTTPStatus.CREATED, {"Location": location, **_replayed(placed.replayed)}


@orders.get("/orders")
@orders.auth_required(auth, roles=["orders"])
@orders.input(schemas.OrdersQuery, location="query", arg_name="query")
@orders.output(schemas.OrdersOut)
def list_orders(query: schemas.OrdersQuery) -> Any:
    """Your orders: newest first, or with expires_before those with the latest deadline first."""
    found = services().orders.orders(
        caller(),
        page_size=query.limit,
        status=query.status,
        created_after=query.created_after,
        expires_before=query.expires_before,
        after=query.after,
    )
    return _page(found, query)


@orders.get("/orders/<uuid:order_id>")
@orders.auth_required(auth, roles=["orders"])
@orders.output(schemas.OrderOut)
def get_order(order_id: object) -> Any:
    """One order."""
    return services().orders.order(caller(), str(order_id))


@orders.get("/orders/<uuid:order_id>/events")
@orders.auth_required(auth, roles=["orders"])
@orders.input(schemas.EventsQuery, location="query", arg_name="query")
@orders.output(schemas.EventsOut)
def list_events(order_id: object, query: schemas.EventsQuery) -> Any:
    """What happened to an order, oldest first."""
    found = services().orders.events(
        caller(), str(order_id), after_id=query.after_id, page_size=query.limit
    )
    more = len(found) == query.limit
    return {"data": found, "next_cursor": schemas.encoded(found[-1].id) if more else None}


@orders.post("/orders/<uuid:order_id>/payments")
@orders.auth_required(auth, roles=["payments"])
@orders.input(schemas.PaymentIn, arg_name="body")
@orders.output(schemas.PaymentOut, HTTPStatus.CREATED)
@orders.doc(responses={202: "The money came too late, twice, or in the wrong amount: refund due"})
def create_payment(order_id: object, body: schemas.PaymentIn) -> Any:
    """Take a payment. Money that the order cannot take is kept, and due back."""
    paid = services().orders.pay(caller(), str(order_id), **body.model_dump())
    status = HTTPStatus.CREATED if paid.payment.status == "applied" else HTTPStatus.ACCEPTED
    return paid.payment, status, _replayed(paid.replayed)


@orders.get("/orders/<uuid:order_id>/payments")
@orders.auth_required(auth, roles=["orders", "payments"])
@orders.input(schemas.PaymentsOfOrderQuery, location="query", arg_name="query")
@orders.output(schemas.PaymentsOut)
def list_payments_of_order(order_id: object, query: schemas.PaymentsOfOrderQuery) -> Any:
    """An order's payments, oldest first."""
    found = services().orders.payments_of_order(
        caller(), str(order_id), page_size=query.limit, after=query.after
    )
    return _page(found, query)


@payments.get("/payments")
@payments.auth_required(auth, roles=["payments"])
@payments.input(schemas.PaymentsQuery, location="query", arg_name="query")
@payments.output(schemas.PaymentsOut)
def list_payments(query: schemas.PaymentsQuery) -> Any:
    """Your payments with one status, oldest first. refund_due lists the money to send back."""
    found = services().orders.payments(
        caller(), status=query.status, page_size=query.limit, after=query.after
    )
    return _page(found, query)


@payments.post("/payments/<uuid:payment_id>/refund")
@payments.auth_required(auth, roles=["payments"])
@payments.input(schemas.RefundIn, arg_name="body")
@payments.output(schemas.PaymentOut)
def refund_payment(payment_id: object, body: schemas.RefundIn) -> Any:
    """Record that money due back has been sent. Repeating the request changes nothing."""
    refunded = services().orders.refund(caller(), str(payment_id), **body.model_dump())
    return refunded.payment, HTTPStatus.OK, _replayed(refunded.replayed)


@orders.post("/orders/<uuid:order_id>/cancel")
@orders.auth_required(auth, roles=["orders"])
@orders.output(schemas.OrderOut)
def cancel_order(order_id: object) -> Any:
    """Cancel an unpaid order. Cancelling it again changes nothing."""
    return services().orders.cancel(caller(), str(order_id))


@stock.get("/stock/<sku>")
@stock.auth_required(auth)
@stock.output(schemas.StockOut)
def get_stock(sku: str) -> Any:
    """A SKU's stock and price."""
    return services().orders.stock(schemas.checked_sku(sku))


@stock.put("/stock/<sku>")
@stock.auth_required(auth, roles=["ops"])
@stock.input(schemas.StockIn, arg_name="body")
@stock.output(schemas.StockOut)
def put_stock(sku: str, body: schemas.StockIn) -> Any:
    """Set a SKU's stock and price."""
    return services().orders.set_stock(schemas.checked_sku(sku), **body.model_dump())


@health.get("/healthz")
def healthz() -> ResponseReturnValue:
    """The process runs."""
    return {"status": "ok"}


@health.get("/readyz")
def readyz() -> ResponseReturnValue:
    """The database has the schema and takes writes. Without Redis the service works, degraded."""
    redis = "ok" if services().redis_answers() else "unavailable"
    try:
        services().orders.check_ready()
    except StorageUnavailable as error:
        log.warning("not ready", error=str(error))
        # Anybody may ask: what a driver says of its server is for the log.
        database = "unavailable" if type(error) is StorageUnavailable else str(error)
        report = {"status": "unavailable", "database": database, "redis": redis}
        return report, HTTPStatus.SERVICE_UNAVAILABLE
    status = "ready" if redis == "ok" else "degraded"
    return {"status": status, "database": "ok", "redis": redis}
