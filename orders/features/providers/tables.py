"""The tables of payment providers."""

import sqlalchemy as sa

from orders.db.base import PERSONAL, Id, Instant, index_by, metadata
from orders.features.signing.tables import secrets_of

# Where a payment provider sends its webhooks, for one client.
provider_endpoints = sa.Table(
    "provider_endpoints",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("client_id", Id, sa.ForeignKey("api_clients.id"), nullable=False),
    sa.Column("provider", sa.String(50), nullable=False),  # as in payments
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("revoked_at", Instant),
    sa.Column("close_url", sa.String(2000)),  # asked to close a payment attempt
    sa.CheckConstraint("provider = lower(provider)", name="ck_provider_endpoints_provider"),
)
index_by("ix_provider_endpoints_client", provider_endpoints.c.client_id, provider_endpoints.c.id)
# Looked up by each payment: whether its provider is registered.
sa.Index(
    "ix_provider_endpoints_valid",
    *provider_endpoints.c["client_id", "provider"],
    postgresql_where=provider_endpoints.c.revoked_at.is_(None),
)


provider_secrets = secrets_of("provider_secrets", "endpoint_id", "provider_endpoints")

# Signed messages that could not be recorded, as they came, until a person settles them.
provider_messages = sa.Table(
    "provider_messages",
    metadata,
    sa.Column("id", Id, primary_key=True),  # a hash of the endpoint, the webhook-id and the body
    sa.Column("endpoint_id", Id, sa.ForeignKey("provider_endpoints.id"), nullable=False),
    sa.Column("webhook_id", sa.String(255), nullable=False, info=PERSONAL),
    sa.Column("body", sa.LargeBinary, info=PERSONAL),  # while it waits
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("status", sa.String(7), nullable=False),  # waiting or settled
    sa.Column("note", sa.String(500), nullable=False),  # what became of it, or why it waits
    sa.Column("unknown_type", sa.String(100)),
    sa.Column("order_id", Id),  # the client's order that it is about, if there was one
    sa.Column("payment_reference", sa.String(255), info=PERSONAL),  # the payment that it names
)
# Those that wait, or are old, oldest first.
index_by("ix_provider_messages_status", *provider_messages.c["status", "created_at", "id"])
# How many of an endpoint's wait.
sa.Index("ix_provider_messages_endpoint", *provider_messages.c["endpoint_id", "status"])
# Whether there has been such a type.
sa.Index(
    "ix_provider_messages_type",
    *provider_messages.c["endpoint_id", "unknown_type"],
    postgresql_where=provider_messages.c.unknown_type.is_not(None),
)
# Those about one order.
sa.Index(
    "ix_provider_messages_order",
    provider_messages.c.order_id,
    postgresql_where=provider_messages.c.order_id.is_not(None),
)
# Those about a payment that was not known yet.
index_by(
    "ix_provider_messages_reference",
    provider_messages.c.payment_reference,
    where=provider_messages.c.order_id.is_(None),
)

# A payment that is under way: until it is settled, or ends. What it means for the order is in
# `unpaid_orders.kept_until`. No foreign keys, as in `unpaid_orders`.
payment_attempts = sa.Table(
    "payment_attempts",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("order_id", Id, nullable=False),
    sa.Column("client_id", Id, nullable=False),  # the order's
    sa.Column("provider", sa.String(50), nullable=False),
    sa.Column("reference", sa.String(255), nullable=False),
    sa.Column("opened_at", Instant, nullable=False),
    sa.Column("ends_at", Instant, nullable=False),
    sa.Column("asks", sa.Boolean, nullable=False),  # the provider, before it is settled
    sa.Column("settled_at", Instant),
    sa.Column("outcome", sa.String(20)),
    sa.CheckConstraint("provider = lower(provider)", name="ck_payment_attempts_provider"),
    sa.CheckConstraint(
        "(settled_at IS NULL) = (outcome IS NULL)", name="ck_payment_attempts_settled"
    ),
)
sa.Index(
    "uq_payment_attempts_reference",
    *payment_attempts.c["client_id", "provider", "reference"],
    unique=True,
)
sa.Index(
    "ix_payment_attempts_order",
    payment_attempts.c.order_id,
    postgresql_where=payment_attempts.c.settled_at.is_(None),
)
# An order's attempts, oldest first.
index_by("ix_payment_attempts_opened", *payment_attempts.c["order_id", "opened_at", "id"])
# What the sweep reads.
index_by(
    "ix_payment_attempts_ends",
    *payment_attempts.c["ends_at", "id"],
    where=payment_attempts.c.settled_at.is_(None),
)
