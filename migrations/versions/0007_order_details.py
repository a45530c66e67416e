"""Orders have a reference and metadata of their client's, and how many pieces they hold.

On PostgreSQL the index is built concurrently; queries wait only while the columns are added, and for
what already reads orders at that moment. The previous version works before, during and after the
migration: what it places has neither, and its pieces are counted from its items.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007_order_details"
down_revision = "0006_refunds"
branch_labels = None
depends_on = None

COLUMNS: dict[str, Any] = {
    "client_reference": sa.String(255),
    "metadata": sa.JSON(),
    "pieces": sa.BigInteger(),
}
INDEX = "ix_orders_reference"


def upgrade() -> None:
    concurrently = op.get_context().dialect.name == "postgresql"
    with op.get_context().autocommit_block():
        there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("orders")}
        for name in [name for name in COLUMNS if name not in there]:
            op.add_column("orders", sa.Column(name, COLUMNS[name], nullable=True))
        op.drop_index(INDEX, "orders", if_exists=True, postgresql_concurrently=concurrently)
        op.create_index(
            INDEX,
            "orders",
            ["customer_id", "client_reference", "status", "created_at", "id"],
            postgresql_where=sa.text("client_reference IS NOT NULL"),
            sqlite_where=sa.text("client_reference IS NOT NULL"),
            postgresql_concurrently=concurrently,
        )


def downgrade() -> None:
    """References and metadata are lost. Deadlines that were changed stay as they are."""
    op.drop_index(INDEX, "orders")
    with op.batch_alter_table("orders") as batch:
        for name in COLUMNS:
            batch.drop_column(name)
