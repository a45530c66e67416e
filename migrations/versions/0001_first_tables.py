"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first_tables"
down_revision = None
branch_labels = None
depends_on = None

# A migration keeps its own types: it says what was, whatever the models say later.
ID = sa.UUID(as_uuid=False)
INSTANT = sa.TIMESTAMP(timezone=True)

TERMINAL = sa.text("type IN ('order.paid', 'order.cancelled')")
HAS_REFERENCE = sa.text("client_reference IS NOT NULL")


def upgrade() -> None:
    _clients()
    _providers()
    _stock()
    _orders()
    _webhooks()


def _clients() -> None:
    op.create_table(
        "api_clients",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_api_clients"),
        sa.UniqueConstraint("name", name="uq_api_clients_name"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(100), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.Column("lifetime_ms", sa.BigInteger()),
        sa.Column("last_used_at", INSTANT),
        sa.ForeignKeyConstraint(["client_id"], ["api_clients.id"], name="fk_api_keys_client_id"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_client", "api_keys", ["client_id", "id"])


def _providers() -> None:
    op.create_table(
        "provider_endpoints",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("provider", sa.String(50), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("revoked_at", INSTANT),
        sa.ForeignKeyConstraint(
            ["client_id"], ["api_clients.id"], name="fk_provider_endpoints_client_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_provider_endpoints"),
    )
    op.create_index("ix_provider_endpoints_client", "provider_endpoints", ["client_id", "id"])
    op.create_table(
        "provider_secrets",
        sa.Column("endpoint_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["provider_endpoints.id"], name="fk_provider_secrets_endpoint_id"
        ),
        sa.PrimaryKeyConstraint("endpoint_id", "id", name="pk_provider_secrets"),
    )


def _stock() -> None:
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
    op.create_index("ix_stock_items_sku", "stock_items", [sa.text('sku COLLATE "C"')])
    op.create_table(
        "stock_adjustments",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("sku", sa.String(64), nullable=False),
        sa.Column("client_id", ID),
        sa.Column("delta", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(200), nullable=False),
        sa.Column("on_hand", sa.Integer(), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.CheckConstraint("delta <> 0", name="ck_stock_adjustments_delta"),
        sa.ForeignKeyConstraint(
            ["client_id"], ["api_clients.id"], name="fk_stock_adjustments_client_id"
        ),
        sa.ForeignKeyConstraint(["sku"], ["stock_items.sku"], name="fk_stock_adjustments_sku"),
        sa.PrimaryKeyConstraint("id", name="pk_stock_adjustments"),
    )
    op.create_index("ix_stock_adjustments_sku", "stock_adjustments", ["sku", "id"])
    op.create_index(
        "uq_stock_adjustments_idempotency_key",
        "stock_adjustments",
        ["client_id", "idempotency_key"],
        unique=True,
    )


def _orders() -> None:
    op.create_table(
        "orders",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("currency", sa.CHAR(3), nullable=False),
        sa.Column("total_minor", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("client_reference", sa.String(255)),
        sa.Column("metadata", sa.JSON()),
        sa.Column("origin", sa.String(120)),
        sa.ForeignKeyConstraint(["client_id"], ["api_clients.id"], name="fk_orders_client_id"),
        sa.PrimaryKeyConstraint("id", name="pk_orders"),
    )
    op.create_index(
        "uq_orders_idempotency_key", "orders", ["client_id", "idempotency_key"], unique=True
    )
    op.create_table(
        "unpaid_orders",
        sa.Column("order_id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("pieces", sa.BigInteger(), nullable=False),
        sa.Column("client_reference", sa.String(255)),
        sa.PrimaryKeyConstraint("order_id", name="pk_unpaid_orders"),
    )
    for name, columns in {
        "expires": ["expires_at", "order_id"],
        "client": ["client_id", "order_id"],
        "client_expires": ["client_id", "expires_at", "order_id"],
    }.items():
        op.create_index(f"ix_unpaid_orders_{name}", "unpaid_orders", columns)
    op.create_index(
        "ix_unpaid_orders_reference",
        "unpaid_orders",
        ["client_reference", "client_id", "order_id"],
        postgresql_where=HAS_REFERENCE,
    )
    op.create_table(
        "order_items",
        sa.Column("order_id", ID, nullable=False),
        sa.Column("sku", sa.String(64), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("unit_price_minor", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("quantity > 0", name="ck_order_items_quantity"),
        sa.PrimaryKeyConstraint("order_id", "sku", name="pk_order_items"),
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
        sa.Column("client_id", ID, nullable=False),
        sa.Column("refunded_at", INSTANT),
        sa.Column("refund_reference", sa.String(255)),
        sa.CheckConstraint(
            "status IN ('applied', 'refund_due', 'refunded')", name="ck_payments_status"
        ),
        sa.ForeignKeyConstraint(["order_id"], ["orders.id"], name="fk_payments_order_id"),
        sa.PrimaryKeyConstraint("id", name="pk_payments"),
    )
    op.create_index("ix_payments_order", "payments", ["order_id"])
    op.create_index(
        "ix_payments_refund_due",
        "payments",
        ["created_at", "id"],
        postgresql_where=sa.text("status = 'refund_due'"),
    )
    op.create_index("ix_payments_status", "payments", ["client_id", "status", "created_at", "id"])
    op.create_index(
        "uq_payments_reference", "payments", ["client_id", "provider", "reference"], unique=True
    )
    op.create_index(
        "uq_payments_refund",
        "payments",
        ["client_id", "provider", "refund_reference"],
        unique=True,
        postgresql_where=sa.text("refund_reference IS NOT NULL"),
    )
    op.create_table(
        "order_events",
        sa.Column("order_id", ID, nullable=False),
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("type", sa.String(30), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.Column("version", sa.Integer()),
        sa.Column("client_reference", sa.String(255)),
        sa.CheckConstraint(
            "(type IN ('order.paid', 'order.cancelled')) = (expires_at IS NOT NULL)"
            " AND (expires_at IS NULL) = (version IS NULL)",
            name="ck_order_events_terminal",
        ),
        sa.PrimaryKeyConstraint("order_id", "id", name="pk_order_events"),
    )
    op.create_index(
        "uq_order_events_terminal",
        "order_events",
        ["order_id"],
        unique=True,
        postgresql_where=TERMINAL,
    )
    op.create_index(
        "ix_order_events_ended",
        "order_events",
        ["client_id", "type", "order_id"],
        postgresql_where=TERMINAL,
    )
    op.create_index(
        "ix_order_events_ended_expires",
        "order_events",
        ["client_id", "type", "expires_at", "order_id"],
        postgresql_where=TERMINAL,
    )
    op.create_index(
        "ix_order_events_ended_reference",
        "order_events",
        ["client_reference", "client_id", "type", "order_id"],
        postgresql_where=HAS_REFERENCE,
    )
    op.create_index(
        "ix_order_events_expired",
        "order_events",
        ["at"],
        postgresql_where=sa.text("type = 'order.cancelled' AND data ->> 'reason' = 'expired'"),
    )


def _webhooks() -> None:
    op.create_table(
        "webhook_subscriptions",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("events", sa.String(500)),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("previous_secret", sa.String(100)),
        sa.Column("previous_secret_expires_at", INSTANT),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("paused_at", INSTANT),
        sa.Column("pause_reason", sa.String(20)),
        sa.Column("deleted_at", INSTANT),
        sa.ForeignKeyConstraint(
            ["client_id"], ["api_clients.id"], name="fk_webhook_subscriptions_client_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_subscriptions"),
    )
    op.create_index(
        "ix_webhook_subscriptions_client",
        "webhook_subscriptions",
        ["client_id", "created_at", "id"],
    )
    op.create_table(
        "webhook_interests",
        sa.Column("client_id", ID, nullable=False),
        sa.Column("event_type", sa.String(30), nullable=False),
        sa.Column("subscription_id", ID, nullable=False),
        sa.Column("type", sa.String(30), nullable=False),
        sa.PrimaryKeyConstraint(
            "client_id", "event_type", "subscription_id", "type", name="pk_webhook_interests"
        ),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", ID, server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("subscription_id", ID, nullable=False),
        sa.Column("order_id", ID, nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(30), nullable=False),
        sa.Column("status", sa.String(9), server_default="pending", nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("delivered_at", INSTANT),
        sa.Column("last_attempt_at", INSTANT),
        sa.Column("last_status", sa.Integer()),
        sa.Column("last_error", sa.String(200)),
        sa.Column("last_body", sa.String(1000)),
        sa.CheckConstraint(
            "status IN ('pending', 'delivered', 'dead')", name="ck_webhook_deliveries_status"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["due_at", "id"],
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_webhook_deliveries_order",
        "webhook_deliveries",
        ["order_id", "subscription_id", "event_id"],
    )
    op.create_index(
        "ix_webhook_deliveries_subscription",
        "webhook_deliveries",
        ["subscription_id", "status", "created_at", "id"],
    )


def downgrade() -> None:
    for table in (
        "webhook_deliveries",
        "webhook_interests",
        "webhook_subscriptions",
        "order_events",
        "payments",
        "order_items",
        "unpaid_orders",
        "orders",
        "stock_adjustments",
        "stock_items",
        "provider_secrets",
        "provider_endpoints",
        "api_keys",
        "api_clients",
    ):
        op.drop_table(table)
