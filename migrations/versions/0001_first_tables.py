"""The first tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001_first_tables"
down_revision = None
branch_labels = None
depends_on = None

# A migration keeps its own types: it says what was, whatever the models say later.
ID = postgresql.UUID(as_uuid=False).with_variant(sa.CHAR(36), "sqlite")
INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
UNPAID = sa.text("status = 'unpaid'")
TERMINAL = sa.text("type IN ('order.paid', 'order.cancelled')")


def upgrade() -> None:
    op.create_table(
        "api_clients",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(100), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_api_clients"),
        sa.UniqueConstraint("name", name="uq_api_clients_name"),
    )
    op.create_table(
        "stock_items",
        sa.Column("sku", sa.String(64), nullable=False),
        sa.Column("on_hand", sa.Integer(), nullable=False),
        sa.Column("reserved", sa.Integer(), server_default="0", nullable=False),
        sa.Column("price_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.CHAR(3), nullable=False),
        sa.CheckConstraint(
            "0 <= reserved AND reserved <= on_hand", name="ck_stock_items_reserved_on_hand"
        ),
        sa.CheckConstraint("price_minor >= 0", name="ck_stock_items_price"),
        sa.PrimaryKeyConstraint("sku", name="pk_stock_items"),
    )
    op.create_table(
        "orders",
        sa.Column("id", ID, nullable=False),
        sa.Column("customer_id", ID, nullable=False),
        sa.Column("status", sa.String(9), nullable=False),
        sa.Column("currency", sa.CHAR(3), nullable=False),
        sa.Column("total_minor", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("paid_at", INSTANT),
        sa.Column("cancelled_at", INSTANT),
        sa.Column("cancel_reason", sa.String(20)),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.CheckConstraint("status IN ('unpaid', 'paid', 'cancelled')", name="ck_orders_status"),
        sa.CheckConstraint("(status = 'paid') = (paid_at IS NOT NULL)", name="ck_orders_paid_at"),
        sa.CheckConstraint(
            "(status = 'cancelled') = (cancelled_at IS NOT NULL)", name="ck_orders_cancelled_at"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_orders"),
        sa.ForeignKeyConstraint(["customer_id"], ["api_clients.id"], name="fk_orders_customer_id"),
    )
    op.create_index(
        "ix_orders_unpaid_expiry",
        "orders",
        ["expires_at", "id"],
        postgresql_where=UNPAID,
        sqlite_where=UNPAID,
    )
    op.create_index("ix_orders_customer", "orders", ["customer_id", "id"])
    op.create_table(
        "order_items",
        sa.Column("order_id", ID, nullable=False),
        sa.Column("sku", sa.String(64), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("unit_price_minor", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("quantity > 0", name="ck_order_items_quantity"),
        sa.PrimaryKeyConstraint("order_id", "sku", name="pk_order_items"),
        sa.ForeignKeyConstraint(["order_id"], ["orders.id"], name="fk_order_items_order_id"),
        sa.ForeignKeyConstraint(["sku"], ["stock_items.sku"], name="fk_order_items_sku"),
    )
    op.create_table(
        "payments",
        sa.Column("id", ID, nullable=False),
        sa.Column("order_id", ID, nullable=False),
        sa.Column("provider", sa.String(50), nullable=False),
        sa.Column("reference", sa.String(255), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.CHAR(3), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("reason", sa.String(20)),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint(
            "status IN ('applied', 'refund_due', 'refunded')", name="ck_payments_status"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_payments"),
        sa.UniqueConstraint("provider", "reference", name="uq_payments_provider"),
        sa.ForeignKeyConstraint(["order_id"], ["orders.id"], name="fk_payments_order_id"),
    )
    op.create_index("ix_payments_order", "payments", ["order_id"])
    op.create_table(
        "order_events",
        sa.Column("id", SERIAL, sa.Identity(), nullable=False),
        sa.Column("order_id", ID, nullable=False),
        sa.Column("type", sa.String(30), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_order_events"),
    )
    op.create_index("ix_order_events_order", "order_events", ["order_id", "id"])
    op.create_index(
        "uq_order_events_terminal",
        "order_events",
        ["order_id"],
        unique=True,
        postgresql_where=TERMINAL,
        sqlite_where=TERMINAL,
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("client_id", ID, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("order_id", ID, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("client_id", "key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["client_id"], ["api_clients.id"], name="fk_idempotency_keys_client_id"
        ),
    )


def downgrade() -> None:
    for table in (
        "idempotency_keys",
        "order_events",
        "payments",
        "order_items",
        "orders",
        "stock_items",
        "api_clients",
    ):
        op.drop_table(table)
