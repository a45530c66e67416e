"""The tables of what changed stock beside orders."""

import sqlalchemy as sa

from orders.sql.base import index_by, metadata
from orders.sql.expressions import Id, Instant

stock_adjustments = sa.Table(
    "stock_adjustments",
    metadata,
    # Assigned while the SKU is locked, so that a SKU's ids are in commit order.
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("sku", sa.String(64), sa.ForeignKey("stock_items.sku"), nullable=False),
    sa.Column("client_id", Id, sa.ForeignKey("api_clients.id")),  # null: set on the command line
    sa.Column("delta", sa.Integer, nullable=False),
    sa.Column("reason", sa.String(200), nullable=False),
    sa.Column("on_hand", sa.Integer, nullable=False),  # afterwards
    sa.Column("at", Instant, nullable=False),
    sa.Column("idempotency_key", sa.String(255)),  # null: the stock was set
    sa.Column("key_id", Id),  # the API key's
    sa.CheckConstraint("delta <> 0", name="ck_stock_adjustments_delta"),
)
index_by("ix_stock_adjustments_sku", stock_adjustments.c.sku, stock_adjustments.c.id)
sa.Index(
    "uq_stock_adjustments_idempotency_key",
    stock_adjustments.c.client_id,
    stock_adjustments.c.idempotency_key,
    unique=True,
)
