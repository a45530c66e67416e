"""Indexes for operators: the latest cancellations, and money that is due back, of all clients.

On PostgreSQL they are built concurrently, so they block nobody. An interrupted build leaves an invalid
index behind, which the next run replaces. The previous version works before, during and after.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012_ops"
down_revision = "0011_origins"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_orders_expired": ("orders", ["cancelled_at"], "cancel_reason = 'expired'"),
    "ix_payments_refund_due": ("payments", ["created_at", "id"], "status = 'refund_due'"),
}


def upgrade() -> None:
    concurrently = op.get_context().dialect.name == "postgresql"
    with op.get_context().autocommit_block():
        for name, (table, columns, where) in INDEXES.items():
            op.drop_index(name, table, if_exists=True, postgresql_concurrently=concurrently)
            op.create_index(
                name,
                table,
                columns,
                postgresql_where=sa.text(where),
                sqlite_where=sa.text(where),
                postgresql_concurrently=concurrently,
            )


def downgrade() -> None:
    concurrently = op.get_context().dialect.name == "postgresql"
    with op.get_context().autocommit_block():
        for name, (table, _, _) in INDEXES.items():
            op.drop_index(name, table, if_exists=True, postgresql_concurrently=concurrently)
