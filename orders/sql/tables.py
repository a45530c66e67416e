"""The tables, with those of other files: who has one has all."""

# ruff: noqa: F401
# mypy: implicit-reexport

import sqlalchemy as sa

from orders.sql.base import PERSONAL, index_by, metadata, secrets_of
from orders.sql.expressions import Id, Instant
from orders.sql.freeze_tables import (
    api_signs,
    freezes,
    payment_attempts,
    queue_pauses,
)
from orders.sql.stock_tables import stock_adjustments
from orders.sql.webhook_tables import (
    EVERY,
    PENDING,
    webhook_deliveries,
    webhook_interests,
    webhook_secrets,
    webhook_subscriptions,
)

#: The newest revision under migrations/versions/: what this code was written for.
SCHEMA_VERSION = "0001_first_tables"

#: A literal, not a parameter: only then does a planner see that a partial index applies.
REFUND_DUE: sa.ColumnClause[str] = sa.literal_column("'refund_due'")

api_clients = sa.Table(
    "api_clients",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", sa.String(100), nullable=False, unique=True),
    sa.Column("created_at", Instant, nullable=False),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("client_id", Id, sa.ForeignKey("api_clients.id"), nullable=False),
    sa.Column("label", sa.String(100)),
    sa.Column("secret_hash", sa.String(64), nullable=False),  # SHA-256 of 256 random bits
    sa.Column("scopes", sa.String(100), nullable=False),  # separated by spaces
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("expires_at", Instant),
    sa.Column("lifetime_ms", sa.BigInteger),  # from its creation on; its successor gets the same
    sa.Column("last_used_at", Instant),
)
index_by("ix_api_keys_client", api_keys.c.client_id, api_keys.c.id)

# Who is logged in to the operators' page.
ops_sessions = sa.Table(
    "ops_sessions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("key_id", Id, sa.ForeignKey("api_keys.id"), nullable=False),
    sa.Column("secret_hash", sa.String(64), nullable=False),  # as in api_keys
    sa.Column("expires_at", Instant, nullable=False),
)
sa.Index("ix_ops_sessions_expires", ops_sessions.c.expires_at)

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

# Signed messages as they came. What cannot be recorded waits for a person.
provider_messages = sa.Table(
    "provider_messages",
    metadata,
    sa.Column("id", Id, primary_key=True),  # a hash of the endpoint, the webhook-id and the body
    sa.Column("endpoint_id", Id, sa.ForeignKey("provider_endpoints.id"), nullable=False),
    sa.Column("webhook_id", sa.String(255), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("status", sa.String(7), nullable=False),  # waiting or settled
    sa.Column("note", sa.String(500), nullable=False),  # what became of it, or why it waits
    sa.Column("unknown_type", sa.String(100)),
    sa.Column("order_id", Id),  # the client's order that it is about, if there was one
    sa.Column("payment_reference", sa.String(255)),  # the payment that it names
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

stock_items = sa.Table(
    "stock_items",
    metadata,
    sa.Column("sku", sa.String(64), primary_key=True),
    sa.Column("on_hand", sa.Integer, nullable=False),  # includes reserved
    sa.Column("reserved", sa.Integer, nullable=False, server_default="0"),
    sa.Column("price_minor", sa.BigInteger, nullable=False),
    sa.Column("currency", sa.CHAR(3), nullable=False),
    sa.Column("retired_at", Instant),  # not sold and not listed since
    sa.Column("timeout_seconds", sa.Integer),  # of orders for it, unless they ask for another
    sa.CheckConstraint(
        "0 <= reserved AND reserved <= on_hand", name="ck_stock_items_reserved_on_hand"
    ),
    sa.CheckConstraint("price_minor >= 0", name="ck_stock_items_price"),
)
# The list is in byte order, and the primary key in that of the database's locale. As DDL, because
# Alembic cannot compare an index that has a collation.
INDEX_IN_BYTES = sa.DDL(  # type: ignore[no-untyped-call]  # it has no types
    'CREATE INDEX ix_stock_items_sku ON stock_items (sku COLLATE "C") WHERE retired_at IS NULL'
)
sa.event.listen(stock_items, "after_create", INDEX_IN_BYTES)

# An order never changes, but for what `orders.order.details` does. While it is unpaid it has a row in
# `unpaid_orders`: the statement that deletes that row ends the order, and writes its one terminal event.
orders = sa.Table(
    "orders",
    metadata,
    # A UUIDv7 whose time is created_at, so ids are in the order of creation: see `orders.sql.ids`.
    sa.Column("id", Id, primary_key=True),
    sa.Column("client_id", Id, sa.ForeignKey("api_clients.id"), nullable=False),
    sa.Column("currency", sa.CHAR(3), nullable=False),
    sa.Column("total_minor", sa.BigInteger, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    # The timeout that the order was placed with, even if its deadline was moved.
    sa.Column("timeout_ms", sa.BigInteger, nullable=False),
    sa.Column("idempotency_key", sa.String(255), nullable=False),
    # Of the request, until its details change; see `orders.http.schemas.orders.OrderIn`.
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("client_reference", sa.String(255), info=PERSONAL),
    sa.Column("metadata", sa.JSON(none_as_null=True), info=PERSONAL),
    sa.Column("origin", sa.String(120), info=PERSONAL),  # see `orders.order.origin`
    sa.Column("changed_at", Instant),  # when its details were
)
sa.Index("uq_orders_idempotency_key", orders.c.client_id, orders.c.idempotency_key, unique=True)

HAS_REFERENCE = sa.text("client_reference IS NOT NULL")
# What may still be paid, cancelled, extended or expire. No foreign keys, here and in what else is
# written with an order: they would look up each order of a batch once more, and an order is only
# deleted with all of that: see `orders.retention`.
unpaid_orders = sa.Table(
    "unpaid_orders",
    metadata,
    sa.Column("order_id", Id, primary_key=True),
    sa.Column("client_id", Id, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("pieces", sa.BigInteger, nullable=False),  # of all items
    sa.Column("client_reference", sa.String(255)),
    sa.Column("kept_until", Instant),  # a payment: see `orders.order.sparing`
    sa.Index(
        *("ix_unpaid_orders_reference", "client_reference", "client_id", "order_id"),
        postgresql_where=HAS_REFERENCE,
    ),
)
# What the sweep reads.
index_by("ix_unpaid_orders_expires", *unpaid_orders.c["expires_at", "order_id"])
# A client's unpaid orders, in the order of each list.
index_by("ix_unpaid_orders_client", *unpaid_orders.c["client_id", "order_id"])
index_by("ix_unpaid_orders_client_expires", *unpaid_orders.c["client_id", "expires_at", "order_id"])

order_items = sa.Table(
    "order_items",
    metadata,
    sa.Column("order_id", Id, primary_key=True),
    sa.Column("sku", sa.String(64), primary_key=True),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("unit_price_minor", sa.BigInteger, nullable=False),
    sa.CheckConstraint("quantity > 0", name="ck_order_items_quantity"),
)

payments = sa.Table(
    "payments",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("order_id", Id, sa.ForeignKey("orders.id"), nullable=False),
    sa.Column("provider", sa.String(50), nullable=False),
    sa.Column("reference", sa.String(255), nullable=False),
    sa.Column("amount_minor", sa.BigInteger, nullable=False),
    sa.Column("currency", sa.CHAR(3), nullable=False),
    sa.Column("status", sa.String(10), nullable=False),
    sa.Column("reason", sa.String(20)),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("client_id", Id, nullable=False),  # the order's
    # The sum of its refunds, and when the latest was recorded, and its reference.
    sa.Column("refunded_minor", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("refunded_at", Instant),
    sa.Column("refund_reference", sa.String(255)),
    sa.Column("paid_at", Instant),  # by the provider's clock
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
)

sa.Index("ix_payments_order", payments.c.order_id)
# What was sent back, looked up for every paid order that is read.
sa.Index(
    "ix_payments_refunded",
    payments.c.order_id,
    postgresql_where=payments.c.refunded_minor > sa.literal_column("0"),
)
# A client's payments of one status, oldest first.
index_by("ix_payments_status", *payments.c["client_id", "status", "created_at", "id"])
# Money that is due back, oldest first, of all clients.
sa.Index(
    "ix_payments_refund_due",
    payments.c.created_at,
    payments.c.id,
    postgresql_where=payments.c.status == REFUND_DUE,
)
sa.Index("uq_payments_reference", *payments.c["client_id", "provider", "reference"], unique=True)

# Refunds and disputes, each once: a provider's references are unique among those of a kind.
payment_entries = sa.Table(
    "payment_entries",
    metadata,
    sa.Column("client_id", Id, primary_key=True),
    sa.Column("provider", sa.String(50), primary_key=True),
    sa.Column("kind", sa.String(10), primary_key=True),  # refund; of a dispute, opened, won or lost
    sa.Column("reference", sa.String(255), primary_key=True),
    sa.Column("payment_id", Id, sa.ForeignKey("payments.id"), nullable=False),
    sa.Column("amount_minor", sa.BigInteger, nullable=False),
    sa.Column("at", Instant, nullable=False),
    sa.Column("key_id", Id),  # the API key's
    sa.Column("failed_at", Instant),  # a refund: its money did not leave
)
# Looked up for each payment that is deleted.
sa.Index("ix_payment_entries_payment", payment_entries.c.payment_id)

order_events = sa.Table(
    "order_events",
    metadata,
    sa.Column("order_id", Id, nullable=False),
    sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
    sa.Column("client_id", Id, nullable=False),  # the order's
    sa.Column("type", sa.String(30), nullable=False),
    sa.Column("at", Instant, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("key_id", Id),  # of the API key that it was done with, if any
    # Of a terminal event, what the order ended with; null in the others.
    sa.Column("expires_at", Instant),
    sa.Column("version", sa.Integer),
    sa.Column("client_reference", sa.String(255)),
    # An order ends once: the database refuses a second event in place 0.
    sa.Column(
        "place",
        sa.BigInteger,
        sa.Computed("CASE WHEN expires_at IS NULL THEN id ELSE 0 END", persisted=True),
    ),
    sa.UniqueConstraint("order_id", "place", name="uq_order_events_terminal"),
    # A client's events in their sequence: see `orders.order.feed`.
    sa.PrimaryKeyConstraint("client_id", "id"),
    sa.CheckConstraint(
        "(type IN ('order.paid', 'order.cancelled')) = (expires_at IS NOT NULL)"
        " AND (expires_at IS NULL) = (version IS NULL)",
        name="ck_order_events_terminal",
    ),
)
#: Whether an event is the terminal one of an order that the statement names.
TERMINAL = order_events.c.place == sa.literal_column("0")
#: The same, where it names a client.
ENDS = sa.text("type IN ('order.paid', 'order.cancelled')")
# A client's ended orders, in the order of each list.
sa.Index(
    "ix_order_events_ended",
    *order_events.c["client_id", "type", "order_id"],
    postgresql_where=ENDS,
)
sa.Index(
    "ix_order_events_ended_expires",
    *order_events.c["client_id", "type", "expires_at", "order_id"],
    postgresql_where=ENDS,
)
sa.Index(
    "ix_order_events_ended_reference",
    *order_events.c["client_reference", "client_id", "type", "order_id"],
    postgresql_where=HAS_REFERENCE,
)
#: Why an order was cancelled.
cancel_reason = order_events.c.data.op("->>", return_type=sa.String())(
    sa.literal_column("'reason'")
)
IS_EXPIRED = sa.and_(
    order_events.c.type == sa.literal_column("'order.cancelled'"),
    cancel_reason == sa.literal_column("'expired'"),
)
# The latest cancellations, for operators. Those of a batch have one time, so PostgreSQL keeps one
# index entry for many.
sa.Index("ix_order_events_expired", order_events.c.at, postgresql_where=IS_EXPIRED)
