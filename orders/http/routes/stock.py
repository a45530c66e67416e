"""Stock and its adjustments."""

from typing import Any

from flask import url_for

from orders import errors
from orders.http.auth import caller, page, replay_header, services
from orders.http.routes.preconditions import etag, expected
from orders.http.routing import Routes, answers
from orders.http.schemas.orders import IdempotencyIn
from orders.http.schemas.stock import (
    AdjustmentIn,
    AdjustmentOut,
    AdjustmentsOut,
    AdjustmentsQuery,
    StockChangeIn,
    StockOut,
    StockQuery,
    StocksOut,
)
from orders.http.schemas.types import checked_sku

stock = Routes("stock", "Stock", "What there is to sell, and at what price.")


@stock.get("/stock", returns=StocksOut, scopes=())
def list_stock(query: StockQuery) -> Any:
    """All SKUs that are sold, in the byte order of their names."""
    return page(services().stock.items(page_size=query.limit, after=query.after), query)


@stock.get("/stock/<sku>", returns=StockOut, scopes=())
@answers(errors.SkuNotFound, sends=["ETag"])
def get_stock(sku: str) -> Any:
    """A SKU's stock and price.

    Its ETag changes with whatever a PUT can set, but not with reserved.
    """
    item = services().stock.get(checked_sku(sku))
    return item, etag(item.version)


@stock.put(
    "/stock/<sku>",
    returns=StockOut,
    also={201: "It is new. Location has its path."},
    scopes=["ops"],
)
@answers(
    *(errors.PreconditionFailed, errors.PreconditionRequired, errors.SkuNotFound),
    *(errors.StockReserved, errors.TimeoutOutOfRange),
    takes=["If-Match, if it exists", "If-None-Match: *"],
    sends=["Location", "ETag"],
)
def put_stock(sku: str, body: StockChangeIn) -> Any:
    """Set a SKU's stock and price, its timeout, or all of them.

    To change a SKU that exists, send If-Match with the ETag that you read. To create one only if
    it is new, send If-None-Match: *. Setting what is there already succeeds without either.
    """
    item, created = services().stock.set(
        checked_sku(sku),
        **body.root.model_dump(exclude_unset=True),
        client_id=caller(),
        expected=expected(),
    )
    if created:
        location = {"Location": url_for("stock.get_stock", sku=sku)}
        return item, etag(item.version) | location, 201
    return item, etag(item.version)


@stock.delete("/stock/<sku>", status=204, description="It is retired.", scopes=["ops"])
@answers(errors.SkuNotFound)
def retire_stock(sku: str) -> Any:
    """Retire a SKU.

    It can no longer be ordered, and is not listed. Orders keep what they reserve. A PUT with If-Match brings
    it back.
    """
    services().stock.retire(checked_sku(sku))


@stock.post("/stock/<sku>/adjustments", returns=AdjustmentOut, status=201, scopes=["ops"])
@answers(
    *(errors.KeyReused, errors.SkuNotFound, errors.StockReserved, errors.StockTooLarge),
    sends=["Idempotent-Replayed"],
)
def create_adjustment(sku: str, header: IdempotencyIn, body: AdjustmentIn) -> Any:
    """Add to a SKU's stock or remove from it, whatever is sold meanwhile."""
    made = services().stock.adjust(
        checked_sku(sku), client_id=caller(), key=header.idempotency_key, **body.model_dump()
    )
    return made.adjustment, replay_header(made.replayed)


@stock.get("/stock/<sku>/adjustments", returns=AdjustmentsOut, scopes=["ops"])
@answers(errors.SkuNotFound)
def list_adjustments(sku: str, query: AdjustmentsQuery) -> Any:
    """Changes of a SKU's stock that orders did not make, newest first."""
    found = services().stock.adjustments(
        checked_sku(sku), page_size=query.limit, before_id=query.after_id
    )
    return page(found, query)
