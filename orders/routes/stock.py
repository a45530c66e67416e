"""Stock."""

from typing import Any

from apiflask import APIBlueprint

from orders.routes.shared import auth, services
from orders.schemas.stock import StockIn, StockOut
from orders.schemas.types import checked_sku

stock = APIBlueprint("stock", __name__, url_prefix="/v1", tag="Stock")


@stock.get("/stock/<sku>")
@stock.auth_required(auth)
@stock.output(StockOut)
def get_stock(sku: str) -> Any:
    """A SKU's stock and price."""
    return services().orders.stock(checked_sku(sku))


@stock.put("/stock/<sku>")
@stock.auth_required(auth, roles=["ops"])
@stock.input(StockIn, arg_name="body")
@stock.output(StockOut)
def put_stock(sku: str, body: StockIn) -> Any:
    """Set a SKU's stock and price."""
    return services().orders.set_stock(checked_sku(sku), **body.model_dump())
