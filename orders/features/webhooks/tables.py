"""The tables of webhooks."""

import sqlalchemy as sa

from orders.db.base import PERSONAL, TRIGGERS, Id, Instant, index_by, metadata
from orders.features.signing.tables import secrets_of

webhook_subscriptions = sa.Table(
    "webhook_subscriptions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("client_id", Id, sa.ForeignKey("api_clients.id"), nullable=False),
    sa.Column("url", sa.String(2000), nullable=False),
    sa.Column("events", sa.ARRAY(sa.Text)),  # null: all, also those of types that come later
    sa.Column(
        "reminds", sa.Boolean, nullable=False
    ),  # whether orders bring reminders, for those who want them
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("paused_at", Instant),
    sa.Column("pause_reason", sa.String(20)),
    sa.Column("deleted_at", Instant),
    sa.Column("asked", sa.Text),  # its URL and events when it was made
)
# Looked up when an event is written.
index_by(
    "ix_webhook_subscriptions_client",
    *webhook_subscriptions.c["client_id", "created_at", "id"],
    where=webhook_subscriptions.c.deleted_at.is_(None),
)

webhook_secrets = secrets_of("webhook_secrets", "subscription_id", "webhook_subscriptions")

# No foreign keys, as in `unpaid_orders`; subscriptions are only marked as deleted.
webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", Id, primary_key=True, server_default=sa.func.gen_random_uuid()),
    sa.Column("subscription_id", Id, nullable=False),
    sa.Column("order_id", Id),  # null in a test message
    sa.Column("event_id", sa.BigInteger),  # likewise; in a reminder, the event it follows
    sa.Column("type", sa.String(30), nullable=False),
    sa.Column("status", sa.String(9), nullable=False, server_default="pending"),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("due_at", Instant, nullable=False),  # while it is being sent, when its lease ends
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),  # that began
    sa.Column("body", sa.Text, info=PERSONAL),  # from the first attempt on, until it is delivered
    sa.Column("delivered_at", Instant),
    sa.Column("last_attempt_at", Instant),
    sa.Column("last_status", sa.Integer),
    sa.Column("last_error", sa.String(200)),
    sa.Column("last_body", sa.String(1000), info=PERSONAL),
    sa.CheckConstraint(
        "status IN ('pending', 'delivered', 'dead')", name="ck_webhook_deliveries_status"
    ),
)
# A subscription's line. The sweep reads the first entry of each.
sa.Index(
    "ix_webhook_deliveries_line",
    *webhook_deliveries.c["subscription_id", "due_at", "id"],
    postgresql_where=sa.text("status = 'pending'"),
)
# A subscription's deliveries of one status, oldest first.
sa.Index(
    "ix_webhook_deliveries_subscription",
    *webhook_deliveries.c["subscription_id", "status", "created_at", "id"],
)
# Whether an earlier event of the same order is still to be sent.
sa.Index(
    "ix_webhook_deliveries_order", *webhook_deliveries.c["order_id", "subscription_id", "event_id"]
)
# What is written when orders change: see ``orders/features/webhooks/outbox.sql``.
TRIGGERS.extend(["order_events.webhooks_fan_out", "orders.webhooks_forget"])
