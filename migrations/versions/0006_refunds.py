"""Payments record when they were refunded, and the provider's reference; an index to list them.

On PostgreSQL the indexes are built concurrently; queries wait only while the columns are added, and for
what already reads payments at that moment. The previous version works before, during and after the
migration.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006_refunds"
down_revision = "0005_keys_of_clients"
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")
COLUMNS: dict[str, Any] = {"refunded_at": INSTANT, "refund_reference": sa.String(255)}
INDEXES: dict[str, dict[str, Any]] = {
    "ix_payments_status": {"columns": ["customer_id", "status", "created_at", "id"]},
    "uq_payments_refund": {
        "columns": ["customer_id", "provider", "refund_reference"],
        "unique": True,
        "postgresql_where": sa.text("refund_reference IS NOT NULL"),
        "sqlite_where": sa.text("refund_reference IS NOT NULL"),
    },
}
#: For payments that were refunded before a downgrade.
FILL = (
    "UPDATE payments SET refunded_at = e.at, refund_reference = e.data ->> 'refund_reference' "
    "FROM order_events e WHERE e.order_id = payments.order_id AND e.type = 'payment.refunded' "
    "AND e.data ->> 'payment_id' = CAST(payments.id AS text) "
    "AND payments.status = 'refunded' AND payments.refund_reference IS NULL"
)


def upgrade() -> None:
    concurrently = op.get_context().dialect.name == "postgresql"
    with op.get_context().autocommit_block():
        there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("payments")}
        for name in [name for name in COLUMNS if name not in there]:
            op.add_column("payments", sa.Column(name, COLUMNS[name], nullable=True))
        op.execute(FILL)
        for name, index in INDEXES.items():
            op.drop_index(name, "payments", if_exists=True, postgresql_concurrently=concurrently)
            op.create_index(name, "payments", **index, postgresql_concurrently=concurrently)


def downgrade() -> None:
    """Refunded payments stay refunded; when, and by which reference, is in their events."""
    for name in INDEXES:
        op.drop_index(name, "payments")
    with op.batch_alter_table("payments") as batch:
        for name in COLUMNS:
            batch.drop_column(name)
