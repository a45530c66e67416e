"""What a scrape reads of orders and payments."""

from collections.abc import Iterator

import sqlalchemy as sa

from orders.db.files import Room
from orders.features.parts import Figure
from orders.order.reads import Reads

SQL = Room("orders.features.metrics")
#: The most payments that are summed up, which bounds the cost of a scrape.
MOST_PAYMENTS = 10_000


def figures(sql: sa.Connection) -> Iterator[Figure]:
    yield Figure(
        "orders_oldest_overdue_age_seconds",
        "How long ago the oldest unpaid order should have been cancelled; 0 when none should.",
        {(): (SQL.get_oldest_overdue(sql).scalar_one_or_none() or 0) / 1000},
    )
    due = Reads(sql).refunds_due(MOST_PAYMENTS)
    bound = f"among the {MOST_PAYMENTS:,} oldest of them."
    yield Figure(
        "orders_refunds_due",
        f"Payments that are due back, {bound}",
        {(each.currency,): each.payments for each in due},
        ("currency",),
    )
    yield Figure(
        "orders_refunds_due_minor_units",
        f"Money that is due back, in minor units of its currency, {bound}",
        {(each.currency,): each.amount_minor for each in due},
        ("currency",),
    )
    yield Figure(
        "orders_oldest_refund_due_age_seconds",
        f"How long the oldest refund has been due, {bound}",
        {(each.currency,): each.oldest_ms / 1000 for each in due},
        ("currency",),
    )
