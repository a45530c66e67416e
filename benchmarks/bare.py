"""An API as a tutorial would write it, on the same server and framework.

It has no authentication, idempotency, validation or events, and schedules nothing.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any

import psycopg
import sqlalchemy as sa
from flask import Flask, Response, request
from flask.typing import ResponseReturnValue
from psycopg.rows import dict_row
from psycopg.types.json import Json
from psycopg.types.string import TextLoader
from uuid_utils import uuid7

from benchmarks import raw
from orders.http.schemas.orders import OrderIn
from orders.http.strict_json import parse_object
from orders.sql.ids import random_part
from orders.sql.tables import (
    order_events,
    order_items,
    orders,
    payments,
    stock_items,
    unpaid_orders,
)

HOLD = (
    sa.update(stock_items)
    .where(stock_items.c.sku == sa.bindparam("for_sku"))
    .values(reserved=stock_items.c.reserved + sa.bindparam("some"))
)

SELL = (
    sa.update(stock_items)
    .where(stock_items.c.sku == sa.bindparam("for_sku"))
    .values(
        reserved=stock_items.c.reserved - sa.bindparam("some"),
        on_hand=stock_items.c.on_hand - sa.bindparam("some"),
    )
)


def create_app() -> Flask:
    app = Flask(__name__)
    engine = sa.create_engine(os.environ["DATABASE_URL"], pool_size=10)

    @app.post("/route")
    def route() -> ResponseReturnValue:
        """Parse JSON, respond with JSON."""
        return {"items": len(request.get_json()["items"])}, 201

    @app.post("/orders")
    def place() -> ResponseReturnValue:
        """Hold the stock, insert the order, insert its items."""
        body = request.get_json()
        order, unpaid = _order(body)
        with engine.begin() as connection:
            for item in body["items"]:
                connection.execute(HOLD, {"for_sku": item["sku"], "some": item["quantity"]})
            connection.execute(sa.insert(orders), order)
            connection.execute(sa.insert(unpaid_orders), unpaid)
            connection.execute(
                sa.insert(order_items),
                [{"order_id": order["id"], **item} for item in body["items"]],
            )
        return {"id": order["id"]}, 201

    @app.post("/payments")
    def pay() -> ResponseReturnValue:
        """Insert the payment, end the order as paid, take its items out of stock."""
        payment = request.get_json()
        order = orders.c.id == payment["order_id"]
        with engine.begin() as connection:
            found = connection.execute(sa.select(orders).where(order)).one()
            connection.execute(
                sa.insert(payments),
                {
                    **payment,
                    "id": str(uuid7()),
                    "client_id": found.client_id,
                    "status": "applied",
                    "created_at": datetime.now(UTC),
                },
            )
            unpaid = unpaid_orders.c.order_id == found.id
            ended = connection.execute(
                sa.delete(unpaid_orders)
                .where(unpaid)
                .returning(
                    unpaid_orders.c.order_id, unpaid_orders.c.client_id, unpaid_orders.c.expires_at
                )
            ).one()
            paid = {"type": "order.paid", "at": datetime.now(UTC), "data": {}, "version": 2}
            connection.execute(sa.insert(order_events), {**ended._asdict(), **paid})
            items = sa.select(order_items).where(order_items.c.order_id == found.id)
            for item in connection.execute(items):
                connection.execute(SELL, {"for_sku": item.sku, "some": item.quantity})
        return {"status": "paid"}, 201

    @app.get("/orders/<order_id>")
    def read(order_id: str) -> ResponseReturnValue:
        """An order and its items."""
        with engine.connect() as connection:
            order = connection.execute(sa.select(orders).where(orders.c.id == order_id)).one()
            items = connection.execute(
                sa.select(order_items).where(order_items.c.order_id == order_id)
            ).all()
        return {
            **order._asdict(),
            "items": [item._asdict() for item in items],
        }

    return app


def create_least_app(dsn: str, key: str, customer: str) -> Flask:
    """The smallest application whose create does what this project's does, for one thread and one key.

    It leaves out scheduling, limits and logs.
    """
    app = Flask(__name__)
    connection = psycopg.connect(dsn, autocommit=True)
    connection.adapters.register_loader("uuid", TextLoader)
    secret_hash = sha256(key.encode()).hexdigest()

    @app.post("/v1/orders")
    def place() -> ResponseReturnValue:
        """Check the key, parse and validate, send one statement."""
        sent = request.environ["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
        if not compare_digest(secret_hash, sha256(sent.encode()).hexdigest()):
            return "", 401
        body = OrderIn.model_validate(parse_object(request.get_data()))
        text, fixed = raw.PLACE
        order = {
            "for_random": random_part(),
            "for_client": customer,
            "for_key": request.environ["HTTP_IDEMPOTENCY_KEY"],
            "for_fingerprint": body.fingerprint(),
            "for_ms": 1_800_000,
            "quantities": Json({item.sku: item.quantity for item in body.items}),
            "skus": len(body.items),
        }
        cursor = connection.cursor(row_factory=dict_row)
        rows = cursor.execute(text, {**fixed, **order}).fetchall()
        order_id, created_at = rows[0]["order_id"], rows[0]["created_at"]
        quantities = {item.sku: item.quantity for item in body.items}
        shown = {
            "id": order_id,
            "client": rows[0]["client"],
            "status": "unpaid",
            "version": 1,
            "currency": rows[0]["currency"],
            "total_minor": int(rows[0]["total"]),
            "items": [
                {
                    "sku": row["sku"],
                    "quantity": quantities[row["sku"]],
                    "unit_price_minor": row["price_minor"],
                }
                for row in rows
            ],
            "created_at": created_at.isoformat(),
            "expires_at": (created_at + timedelta(minutes=30)).isoformat(),
        }
        headers = {"Location": f"/v1/orders/{order_id}", "ETag": '"1"'}
        return Response(json.dumps(shown), 201, headers, content_type="application/json")

    return app


def _order(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An order's two rows. The customer and the prices are what the client says."""
    now, order_id = datetime.now(UTC), str(uuid7())
    order = {
        "id": order_id,
        "client_id": body["client_id"],
        "currency": "EUR",
        "total_minor": sum(item["quantity"] * item["unit_price_minor"] for item in body["items"]),
        "created_at": now,
        "idempotency_key": order_id,
        "fingerprint": "",
        "timeout_ms": 1_800_000,
    }
    unpaid = {
        "order_id": order_id,
        "client_id": body["client_id"],
        "expires_at": now + timedelta(minutes=30),
        "pieces": sum(item["quantity"] for item in body["items"]),
    }
    return order, unpaid
