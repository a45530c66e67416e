"""The tables of what spares an overdue order (see `orders.order.sparing`), and of what opens freezes."""

import sqlalchemy as sa

from orders.sql.base import index_by, metadata
from orders.sql.expressions import Id, Instant

# Deadlines stand still.
freezes = sa.Table(
    "freezes",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("client_id", Id, sa.ForeignKey("api_clients.id")),  # null: everybody's
    sa.Column("reason", sa.String(200), nullable=False),
    sa.Column("opened_by", sa.String(100), nullable=False),  # see `orders.freezes.domain`
    sa.Column("opened_at", Instant, nullable=False),
    sa.Column("ends_at", Instant, nullable=False),
    sa.Column("asked_ms", sa.BigInteger, nullable=False),  # how long it was to last at first
    sa.Column("give_back_ms", sa.BigInteger, nullable=False),
    sa.Column("thawed_by", sa.String(100)),  # null: it was not ended by anybody
    sa.Column("given_back", sa.Integer, nullable=False, server_default="0"),  # how many orders
    sa.Column("given_back_at", Instant),  # null: it is still in force
    sa.CheckConstraint("give_back_ms >= 0", name="ck_freezes_give_back_ms"),
)
# Those in force: all that an expiry, and the sweep, look at.
sa.Index(
    "ix_freezes_in_force",
    freezes.c.ends_at,
    freezes.c.id,
    postgresql_where=freezes.c.given_back_at.is_(None),
)
sa.Index("ix_freezes_opened", freezes.c.opened_at, freezes.c.id)

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

# Which queues are paused. Redis may lose a pause; a worker asks here: see `worker.records.pauses`.
queue_pauses = sa.Table(
    "queue_pauses",
    metadata,
    sa.Column("queue", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("paused_by", sa.Text, nullable=False),
    sa.Column("paused_at", Instant, nullable=False),
)

# When each API process last said that it serves.
api_signs = sa.Table(
    "api_signs",
    metadata,
    sa.Column("process", Id, primary_key=True),
    sa.Column("at", Instant, nullable=False),
)
