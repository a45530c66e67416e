"""Payments record when they were refunded, and the provider's reference; an index to list them.

On PostgreSQL the index is built concurrently, so nobody is stopped. The version before this one works
before, during and after.
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
INDEX = "ix_payments_status"


def upgrade() -> None:
    concurrently = op.get_context().dialect.name == "postgresql"
    with op.get_context().autocommit_block():
        for name, kind in COLUMNS.items():
            column = sa.Column(name, kind, nullable=True)
            op.add_column("payments", column, if_not_exists=concurrently or None)
        op.drop_index(INDEX, "payments", if_exists=True, postgresql_concurrently=concurrently)
        op.create_index(
            INDEX,
            "payments",
            ["customer_id", "status", "created_at", "id"],
            postgresql_concurrently=concurrently,
        )


def downgrade() -> None:
    """Refunded payments stay refunded; when, and by which reference, is lost but for the event."""
    op.drop_index(INDEX, "payments")
    with op.batch_alter_table("payments") as batch:
        for name in COLUMNS:
            batch.drop_column(name)
