"""The tables of the core; features have their own."""

import sqlalchemy as sa

from orders.db.base import PERSONAL, Id, Instant, index_by, metadata

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
    # Each order changes rows here: with room beside them on their page, no index is written for it.
    postgresql_with={"fillfactor": 50},
)
# The list is in byte order, and the primary key in that of the database's locale. As DDL, because
# Alembic cannot compare an index that has a collation.
INDEX_IN_BYTES = sa.DDL(  # type: ignore[no-untyped-call]  # it has no types
    'CREATE INDEX ix_stock_items_sku ON stock_items (sku COLLATE "C") WHERE retired_at IS NULL'
)
sa.event.listen(stock_items, "after_create", INDEX_IN_BYTES)

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

# An order never changes, but for its details: see `orders/order/sql/describe.sql`. While it is unpaid it has a row in
# `unpaid_orders`: the statement that deletes that row ends the order, and writes its one terminal event.
orders = sa.Table(
    "orders",
    metadata,
    # A UUIDv7 whose time is created_at, so ids are in the order of creation: see `orders.db.ids`.
    sa.Column("id", Id, primary_key=True),
    # A client's id: place.sql looks it up, and locks no row that all of a client's orders share.
    sa.Column("client_id", Id, nullable=False),
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
    sa.Column("origin", sa.String(120), info=PERSONAL),  # see `orders.origin`
    sa.Column("changed_at", Instant),  # when its details were
)
sa.Index("uq_orders_idempotency_key", orders.c.client_id, orders.c.idempotency_key, unique=True)

HAS_REFERENCE = sa.text("client_reference IS NOT NULL")
# What may still be paid, cancelled, extended or expire. No foreign keys, here and in what else is
# written with an order: they would look up each order of a batch once more, and an order is only
# deleted with all of that.
unpaid_orders = sa.Table(
    "unpaid_orders",
    metadata,
    sa.Column("order_id", Id, primary_key=True),
    sa.Column("client_id", Id, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("pieces", sa.BigInteger, nullable=False),  # of all items
    sa.Column("client_reference", sa.String(255), info=PERSONAL),
    sa.Column("kept_until", Instant),  # nobody cancels it before: a payment is under way
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

# While a row is here, the deadlines of its client, or of everybody, stand still. What stops them, such as a freeze,
# inserts and deletes it.
stops = sa.Table(
    "stops",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("client_id", Id),  # null: everybody's
    sa.Column("until", Instant, nullable=False),  # when to look again, though it may last longer
)

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
    "ix_payments_refunded", payments.c.order_id, postgresql_where=sa.text("refunded_minor > 0")
)
# A client's payments of one status, oldest first.
index_by("ix_payments_status", *payments.c["client_id", "status", "created_at", "id"])
# Money that is due back, oldest first, of all clients.
sa.Index(
    "ix_payments_refund_due",
    payments.c.created_at,
    payments.c.id,
    postgresql_where=sa.text("status = 'refund_due'"),
)
sa.Index("uq_payments_reference", *payments.c["client_id", "provider", "reference"], unique=True)

# Refunds and disputes, each once: a provider's references are unique among those of a kind.
payment_entries = sa.Table(
    "payment_entries",
    metadata,
    sa.Column("client_id", Id, primary_key=True),
    sa.Column("provider", sa.String(50), primary_key=True),
    sa.Column("kind", sa.String(10), primary_key=True),  # refund; dispute, opened, won, lost
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
    sa.Column("client_reference", sa.String(255), info=PERSONAL),
    # An order ends once: the database refuses a second event in place 0.
    sa.Column(
        "place",
        sa.BigInteger,
        sa.Computed("CASE WHEN expires_at IS NULL THEN id ELSE 0 END", persisted=True),
    ),
    sa.UniqueConstraint("order_id", "place", name="uq_order_events_terminal"),
    # A client's events in their sequence.
    sa.PrimaryKeyConstraint("client_id", "id"),
    sa.CheckConstraint(
        "(type IN ('order.paid', 'order.cancelled')) = (expires_at IS NOT NULL)"
        " AND (expires_at IS NULL) = (version IS NULL)",
        name="ck_order_events_terminal",
    ),
)
# A client's ended orders, in the order of each list. One index for each status: no entry has its text.
for _status in ("paid", "cancelled"):
    _ended = sa.text(f"type = 'order.{_status}'")
    sa.Index(
        f"ix_order_events_{_status}",
        *order_events.c["client_id", "order_id"],
        postgresql_where=_ended,
    )
    sa.Index(
        f"ix_order_events_{_status}_expires",
        *order_events.c["client_id", "expires_at", "order_id"],
        postgresql_where=_ended,
    )
sa.Index(
    "ix_order_events_ended_reference",
    *order_events.c["client_reference", "client_id", "type", "order_id"],
    postgresql_where=HAS_REFERENCE,
)

# Which queues are paused. Redis may lose a pause; a worker asks here: see `worker.records.pauses`.
queue_pauses = sa.Table(
    "queue_pauses",
    metadata,
    sa.Column("queue", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("paused_by", sa.Text, nullable=False),
    sa.Column("paused_at", Instant, nullable=False),
)
