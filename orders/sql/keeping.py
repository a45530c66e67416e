"""The tables of what keeps an overdue order from being cancelled: see `orders.order.waiting`."""

import sqlalchemy as sa

from orders.sql.base import metadata
from orders.sql.expressions import Id, Instant

# A payment that is under way: until it is settled, or ends. What it means for the order is in
# `unpaid_orders.under_way_until`. No foreign keys, as in `unpaid_orders`.
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
sa.Index("ix_payment_attempts_opened", *payment_attempts.c["order_id", "opened_at", "id"])
# What the sweep reads.
sa.Index(
    "ix_payment_attempts_ends",
    *payment_attempts.c["ends_at", "id"],
    postgresql_where=payment_attempts.c.settled_at.is_(None),
)
