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
    _keeping()
    _guards()


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
        sa.Column("label", sa.String(100)),
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
    op.create_table(
        "ops_sessions",
        sa.Column("id", ID, nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_ops_sessions_key_id"),
        sa.PrimaryKeyConstraint("id", name="pk_ops_sessions"),
    )
    op.create_index("ix_ops_sessions_expires", "ops_sessions", ["expires_at"])


def _providers() -> None:
    op.create_table(
        "provider_endpoints",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("provider", sa.String(50), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("revoked_at", INSTANT),
        sa.Column("close_url", sa.String(2000)),
        sa.CheckConstraint("provider = lower(provider)", name="ck_provider_endpoints_provider"),
        sa.ForeignKeyConstraint(
            ["client_id"], ["api_clients.id"], name="fk_provider_endpoints_client_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_provider_endpoints"),
    )
    op.create_index("ix_provider_endpoints_client", "provider_endpoints", ["client_id", "id"])
    op.create_index(
        "ix_provider_endpoints_valid",
        "provider_endpoints",
        ["client_id", "provider"],
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
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
    op.create_table(
        "provider_messages",
        sa.Column("id", ID, nullable=False),
        sa.Column("endpoint_id", ID, nullable=False),
        sa.Column("webhook_id", sa.String(255), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("status", sa.String(7), nullable=False),
        sa.Column("note", sa.String(500), nullable=False),
        sa.Column("unknown_type", sa.String(100)),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["provider_endpoints.id"], name="fk_provider_messages_endpoint_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_provider_messages"),
    )
    op.create_index(
        "ix_provider_messages_status", "provider_messages", ["status", "created_at", "id"]
    )
    op.create_index("ix_provider_messages_endpoint", "provider_messages", ["endpoint_id", "status"])
    op.create_index(
        "ix_provider_messages_type",
        "provider_messages",
        ["endpoint_id", "unknown_type"],
        postgresql_where=sa.text("unknown_type IS NOT NULL"),
    )


def _stock() -> None:
    op.create_table(
        "stock_items",
        sa.Column("sku", sa.String(64), nullable=False),
        sa.Column("on_hand", sa.Integer(), nullable=False),
        sa.Column("reserved", sa.Integer(), server_default="0", nullable=False),
        sa.Column("price_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.CHAR(3), nullable=False),
        sa.Column("retired_at", INSTANT),
        sa.Column("timeout_seconds", sa.Integer()),
        sa.CheckConstraint(
            "0 <= reserved AND reserved <= on_hand", name="ck_stock_items_reserved_on_hand"
        ),
        sa.CheckConstraint("price_minor >= 0", name="ck_stock_items_price"),
        sa.PrimaryKeyConstraint("sku", name="pk_stock_items"),
    )
    op.create_index(
        "ix_stock_items_sku",
        "stock_items",
        [sa.text('sku COLLATE "C"')],
        postgresql_where=sa.text("retired_at IS NULL"),
    )
    op.create_table(
        "stock_repairs",
        sa.Column("sku", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("reserved_before", sa.Integer(), nullable=False),
        sa.Column("reserved", sa.Integer(), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["sku"], ["stock_items.sku"], name="fk_stock_repairs_sku"),
        sa.PrimaryKeyConstraint("sku", "number", name="pk_stock_repairs"),
    )
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
        sa.Column("key_id", ID),
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
        sa.Column("under_way_until", INSTANT),
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
        sa.Column("refunded_minor", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("refunded_at", INSTANT),
        sa.Column("refund_reference", sa.String(255)),
        sa.Column("paid_at", INSTANT),
        sa.CheckConstraint("provider = lower(provider)", name="ck_payments_provider"),
        sa.CheckConstraint(
            "status = 'refunded'"
            " OR status = CASE WHEN reason IS NULL THEN 'applied' ELSE 'refund_due' END",
            name="ck_payments_status",
        ),
        sa.CheckConstraint(
            "0 <= refunded_minor AND refunded_minor <= amount_minor"
            " AND (status = 'refunded') = (refunded_minor = amount_minor)",
            name="ck_payments_refunded",
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
    op.create_index(
        "ix_payments_refunded",
        "payments",
        ["order_id"],
        postgresql_where=sa.text("refunded_minor > 0"),
    )
    op.create_index("ix_payments_status", "payments", ["client_id", "status", "created_at", "id"])
    op.create_index(
        "uq_payments_reference", "payments", ["client_id", "provider", "reference"], unique=True
    )
    op.create_table(
        "payment_entries",
        sa.Column("client_id", ID, nullable=False),
        sa.Column("provider", sa.String(50), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("reference", sa.String(255), nullable=False),
        sa.Column("payment_id", ID, nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("key_id", ID),
        sa.ForeignKeyConstraint(
            ["payment_id"], ["payments.id"], name="fk_payment_entries_payment_id"
        ),
        sa.PrimaryKeyConstraint(
            "client_id", "provider", "kind", "reference", name="pk_payment_entries"
        ),
    )
    op.create_index("ix_payment_entries_payment", "payment_entries", ["payment_id"])
    op.create_table(
        "order_events",
        sa.Column("order_id", ID, nullable=False),
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("type", sa.String(30), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("key_id", ID),
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
    op.create_index("ix_order_events_client", "order_events", ["client_id", "id"])
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
        "webhook_secrets",
        sa.Column("subscription_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.ForeignKeyConstraint(
            ["subscription_id"],
            ["webhook_subscriptions.id"],
            name="fk_webhook_secrets_subscription_id",
        ),
        sa.PrimaryKeyConstraint("subscription_id", "id", name="pk_webhook_secrets"),
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
        sa.Column("order_id", ID),
        sa.Column("event_id", sa.BigInteger()),
        sa.Column("type", sa.String(30), nullable=False),
        sa.Column("status", sa.String(9), server_default="pending", nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("body", sa.Text()),
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
        "ix_webhook_deliveries_line",
        "webhook_deliveries",
        ["subscription_id", "due_at", "id"],
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


def _keeping() -> None:
    op.create_table(
        "freezes",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID),
        sa.Column("sku", sa.String(64)),
        sa.Column("provider", sa.String(50)),
        sa.Column("reason", sa.String(200), nullable=False),
        sa.Column("opened_by", sa.String(100), nullable=False),
        sa.Column("opened_at", INSTANT, nullable=False),
        sa.Column("ends_at", INSTANT, nullable=False),
        sa.Column("asked_ms", sa.BigInteger(), nullable=False),
        sa.Column("give_back_ms", sa.BigInteger(), nullable=False),
        sa.Column("thawed_by", sa.String(100)),
        sa.Column("given_back", sa.Integer(), server_default="0", nullable=False),
        sa.Column("given_back_at", INSTANT),
        sa.CheckConstraint("give_back_ms >= 0", name="ck_freezes_give_back_ms"),
        sa.ForeignKeyConstraint(["client_id"], ["api_clients.id"], name="fk_freezes_client_id"),
        sa.ForeignKeyConstraint(["sku"], ["stock_items.sku"], name="fk_freezes_sku"),
        sa.PrimaryKeyConstraint("id", name="pk_freezes"),
    )
    op.create_index(
        "ix_freezes_holding",
        "freezes",
        ["ends_at", "id"],
        postgresql_where=sa.text("given_back_at IS NULL"),
    )
    op.create_index("ix_freezes_opened", "freezes", ["opened_at", "id"])
    op.create_table(
        "extensions",
        sa.Column("id", ID, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("before_id", ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_extensions"),
    )
    op.create_table(
        "cancellation_pace",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("granted", sa.Integer(), nullable=False),
        sa.Column("used_until", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_cancellation_pace"),
    )
    op.create_table(
        "payment_attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("order_id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("provider", sa.String(50), nullable=False),
        sa.Column("reference", sa.String(255), nullable=False),
        sa.Column("opened_at", INSTANT, nullable=False),
        sa.Column("ends_at", INSTANT, nullable=False),
        sa.Column("asks", sa.Boolean(), nullable=False),
        sa.Column("settled_at", INSTANT),
        sa.Column("outcome", sa.String(20)),
        sa.CheckConstraint("provider = lower(provider)", name="ck_payment_attempts_provider"),
        sa.CheckConstraint(
            "(settled_at IS NULL) = (outcome IS NULL)", name="ck_payment_attempts_settled"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_payment_attempts"),
    )
    op.create_index(
        "ix_payment_attempts_order",
        "payment_attempts",
        ["order_id"],
        postgresql_where=sa.text("settled_at IS NULL"),
    )
    op.create_index(
        "ix_payment_attempts_opened", "payment_attempts", ["order_id", "opened_at", "id"]
    )
    op.create_index(
        "ix_payment_attempts_ends",
        "payment_attempts",
        ["ends_at", "id"],
        postgresql_where=sa.text("settled_at IS NULL"),
    )
    op.create_index(
        "uq_payment_attempts_reference",
        "payment_attempts",
        ["client_id", "provider", "reference"],
        unique=True,
    )


def _guards() -> None:
    op.create_table(
        "queue_pauses",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("paused_by", sa.Text(), nullable=False),
        sa.Column("paused_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("queue", name="pk_queue_pauses"),
    )
    op.create_table(
        "api_signs",
        sa.Column("process", ID, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("process", name="pk_api_signs"),
    )


def downgrade() -> None:
    for table in (
        "api_signs",
        "payment_attempts",
        "cancellation_pace",
        "extensions",
        "queue_pauses",
        "freezes",
        "webhook_deliveries",
        "webhook_interests",
        "webhook_secrets",
        "webhook_subscriptions",
        "order_events",
        "payment_entries",
        "payments",
        "order_items",
        "unpaid_orders",
        "orders",
        "stock_repairs",
        "stock_adjustments",
        "stock_items",
        "provider_messages",
        "provider_secrets",
        "provider_endpoints",
        "ops_sessions",
        "api_keys",
        "api_clients",
    ):
        op.drop_table(table)
