"""Stock and its adjustments."""

from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint
from flask import url_for

from orders.errors import (
    KeyReused,
    PreconditionFailed,
    PreconditionRequired,
    SkuNotFound,
    StockReserved,
    StockTooLarge,
    TimeoutOutOfRange,
)
from orders.http.auth import auth, caller, page, replay_header, services
from orders.http.contract import also, raises, sends, takes
from orders.http.routes.preconditions import etag, expected
from orders.http.schemas.orders import IdempotencyIn
from orders.http.schemas.stock import (
    AdjustmentIn,
    AdjustmentOut,
    AdjustmentsOut,
    AdjustmentsQuery,
    StockIn,
    StockOut,
    StockQuery,
    StocksOut,
)
from orders.http.schemas.types import checked_sku

stock = APIBlueprint(
    "stock",
    __name__,
    url_prefix="/v1",
    tag={"name": "Stock", "description": "What there is to sell, and at what price."},
)


@stock.get("/stock")
@stock.auth_required(auth)
@stock.input(StockQuery, location="query", arg_name="query")
@stock.output(StocksOut)
def list_stock(query: StockQuery) -> Any:
    """All SKUs that are sold, in the byte order of their names."""
    return page(services().stock.items(page_size=query.limit, after=query.after), query)


@stock.get("/stock/<sku>")
@stock.auth_required(auth)
@stock.output(StockOut)
@raises(SkuNotFound)
@sends("ETag")
def get_stock(sku: str) -> Any:
    """A SKU's stock and price.

    Its ETag changes with whatever a PUT can set, but not with reserved.
    """
    item = services().stock.get(checked_sku(sku))
    return item, HTTPStatus.OK, etag(item.version)


@stock.put("/stock/<sku>")
@stock.auth_required(auth, roles=["ops"])
@stock.input(StockIn, arg_name="body")
@stock.output(StockOut)
@stock.doc(responses=also(HTTPStatus.CREATED, "It is new. Location has its path.", {}))
@raises(PreconditionFailed, PreconditionRequired, SkuNotFound, StockReserved, TimeoutOutOfRange)
@takes("If-Match, if it exists", "If-None-Match: *")
@sends("Location", "ETag")
def put_stock(sku: str, body: StockIn) -> Any:
    """Set a SKU's stock, price and timeout.

    To change a SKU that exists, send If-Match with the ETag that you read. To create one only if
    it is new, send If-None-Match: *. Setting what is there already succeeds without either.
    """
    item, created = services().stock.set(
        checked_sku(sku),
        **body.model_dump(exclude_unset=True),
        client_id=caller(),
        expected=expected(),
    )
    if created:
        location = {"Location": url_for("stock.get_stock", sku=sku)}
        return item, HTTPStatus.CREATED, etag(item.version) | location
    return item, HTTPStatus.OK, etag(item.version)


@stock.delete("/stock/<sku>")
@stock.auth_required(auth, roles=["ops"])
@stock.output({}, HTTPStatus.NO_CONTENT, description="It is retired.")
@raises(SkuNotFound)
def retire_stock(sku: str) -> Any:
    """Retire a SKU.

    It can no longer be ordered, and is not listed. Orders keep what they hold. A PUT with If-Match brings
    it back.
    """
    services().stock.retire(checked_sku(sku))
    return "", HTTPStatus.NO_CONTENT


@stock.post("/stock/<sku>/adjustments")
@stock.auth_required(auth, roles=["ops"])
@stock.input(IdempotencyIn, location="headers", arg_name="header")
@stock.input(AdjustmentIn, arg_name="body")
@stock.output(AdjustmentOut, HTTPStatus.CREATED)
@raises(KeyReused, SkuNotFound, StockReserved, StockTooLarge)
@sends("Idempotent-Replayed")
def create_adjustment(sku: str, header: IdempotencyIn, body: AdjustmentIn) -> Any:
    """Add to a SKU's stock or remove from it, whatever is sold meanwhile."""
    made = services().stock.adjust(
        checked_sku(sku), client_id=caller(), key=header.idempotency_key, **body.model_dump()
    )
    return made.adjustment, HTTPStatus.CREATED, replay_header(made.replayed)


@stock.get("/stock/<sku>/adjustments")
@stock.auth_required(auth, roles=["ops"])
@stock.input(AdjustmentsQuery, location="query", arg_name="query")
@stock.output(AdjustmentsOut)
@raises(SkuNotFound)
def list_adjustments(sku: str, query: AdjustmentsQuery) -> Any:
    """Changes of a SKU's stock that orders did not make, newest first."""
    found = services().stock.adjustments(
        checked_sku(sku), page_size=query.limit, before_id=query.before_id
    )
    return page(found, query)
