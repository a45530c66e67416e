"""Webhook subscriptions, which events they want, and a delivery for each event they get.

Three new tables; nothing else changes. After an interrupted run, the next one continues. The
previous version works before, during and after the migration, but makes no deliveries: subscribe
once every API process and worker runs this version.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009_webhooks"
down_revision = "0008_stock_adjustments"
branch_labels = None
depends_on = None

ID = postgresql.UUID(as_uuid=False).with_variant(sa.CHAR(36), "sqlite")
INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")
PARTS = " || '-' || ".join(f"hex(randomblob({size}))" for size in (4, 2, 2, 2, 6))
RANDOM_ID = {"postgresql": "gen_random_uuid()", "sqlite": f"(lower({PARTS}))"}
IS_PENDING = sa.text("status = 'pending'")


def _column(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def upgrade() -> None:
    random_id = sa.text(RANDOM_ID[op.get_context().dialect.name])
    op.create_table(
        "webhook_subscriptions",
        sa.Column("id", ID),
        _column("client_id", ID),
        _column("url", sa.String(2000)),
        sa.Column("events", sa.String(500)),
        _column("secret", sa.String(100)),
        sa.Column("previous_secret", sa.String(100)),
        sa.Column("previous_secret_expires_at", INSTANT),
        _column("created_at", INSTANT),
        sa.Column("paused_at", INSTANT),
        sa.Column("pause_reason", sa.String(20)),
        sa.Column("deleted_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_subscriptions"),
        sa.ForeignKeyConstraint(
            ["client_id"], ["api_clients.id"], name="fk_webhook_subscriptions_client_id"
        ),
        if_not_exists=True,
    )
    op.create_index(
        "ix_webhook_subscriptions_client",
        "webhook_subscriptions",
        ["client_id", "created_at", "id"],
        if_not_exists=True,
    )
    op.create_table(
        "webhook_interests",
        sa.Column("client_id", ID),
        sa.Column("event_type", sa.String(30)),
        sa.Column("subscription_id", ID),
        sa.Column("type", sa.String(30)),
        sa.PrimaryKeyConstraint(
            *("client_id", "event_type", "subscription_id", "type"), name="pk_webhook_interests"
        ),
        if_not_exists=True,
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", ID, server_default=random_id),
        _column("subscription_id", ID),
        _column("order_id", ID),
        _column("event_id", sa.BigInteger),
        _column("type", sa.String(30)),
        _column("status", sa.String(9), server_default="pending"),
        _column("created_at", INSTANT),
        _column("due_at", INSTANT),
        _column("attempts", sa.Integer, server_default="0"),
        sa.Column("delivered_at", INSTANT),
        sa.Column("last_attempt_at", INSTANT),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_error", sa.String(200)),
        sa.Column("last_body", sa.String(1000)),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
        sa.CheckConstraint(
            "status IN ('pending', 'delivered', 'dead')", name="ck_webhook_deliveries_status"
        ),
        if_not_exists=True,
    )
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["due_at", "id"],
        postgresql_where=IS_PENDING,
        sqlite_where=IS_PENDING,
        if_not_exists=True,
    )
    op.create_index(
        "ix_webhook_deliveries_subscription",
        "webhook_deliveries",
        ["subscription_id", "status", "created_at", "id"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_webhook_deliveries_order",
        "webhook_deliveries",
        ["order_id", "subscription_id", "event_id"],
        if_not_exists=True,
    )


def downgrade() -> None:
    """What was not delivered yet is lost."""
    for table in ("webhook_deliveries", "webhook_interests", "webhook_subscriptions"):
        op.drop_table(table)
