"""What an API on this stack could reach: the same server and framework, with less behind them.

No authentication, no idempotency, no validation, no events, nothing scheduled.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from flask import Flask, request
from flask.typing import ResponseReturnValue
from uuid_utils import uuid7

from orders.models import order_items, orders, stock_items

HOLD = (
    sa.update(stock_items)
    .where(stock_items.c.sku == sa.bindparam("for_sku"))
    .values(reserved=stock_items.c.reserved + sa.bindparam("some"))
)


def create_app() -> Flask:
    app = Flask(__name__)
    engine = sa.create_engine(os.environ["DATABASE_URL"], pool_size=10)

    @app.post("/route")
    def route() -> ResponseReturnValue:
        """Parse JSON, answer JSON."""
        return {"items": len(request.get_json()["items"])}, 201

    @app.post("/insert")
    def insert() -> ResponseReturnValue:
        """Insert an order's row."""
        order = _order(request.get_json())
        with engine.begin() as connection:
            connection.execute(sa.insert(orders), order)
        return {"id": order["id"]}, 201

    @app.post("/order")
    def place() -> ResponseReturnValue:
        """Hold the stock, insert the order, insert its items."""
        body = request.get_json()
        order = _order(body)
        with engine.begin() as connection:
            for item in body["items"]:
                connection.execute(HOLD, {"for_sku": item["sku"], "some": item["quantity"]})
            connection.execute(sa.insert(orders), order)
            connection.execute(
                sa.insert(order_items),
                [{"order_id": order["id"], **item} for item in body["items"]],
            )
        return {"id": order["id"]}, 201

    return app


def _order(body: dict[str, Any]) -> dict[str, Any]:
    """An order's row. Its client says who it is, and what things cost."""
    now = datetime.now(UTC)
    return {
        "id": str(uuid7()),
        "customer_id": body["customer_id"],
        "status": "unpaid",
        "currency": "EUR",
        "total_minor": sum(item["quantity"] * item["unit_price_minor"] for item in body["items"]),
        "created_at": now,
        "expires_at": now + timedelta(minutes=30),
    }
