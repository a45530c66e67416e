"""A row for each change of what is on hand, and an index to list SKUs in byte order.

On PostgreSQL the index is built concurrently; queries that write stock or clients wait only while the
table is created, and for what already writes them at that moment. The previous version works before,
during and after the migration; what it sets leaves no row.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008_stock_adjustments"
down_revision = "0007_order_details"
branch_labels = None
depends_on = None

ID = postgresql.UUID(as_uuid=False).with_variant(sa.CHAR(36), "sqlite")
INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

TABLE = "stock_adjustments"
BY_SKU = "ix_stock_items_sku"


def upgrade() -> None:
    on_postgresql = op.get_context().dialect.name == "postgresql"
    with op.get_context().autocommit_block():
        op.create_table(
            TABLE,
            sa.Column("id", NUMBER, sa.Identity(), nullable=False),
            sa.Column("sku", sa.String(64), nullable=False),
            sa.Column("client_id", ID, nullable=True),
            sa.Column("delta", sa.Integer(), nullable=False),
            sa.Column("reason", sa.String(200), nullable=False),
            sa.Column("on_hand", sa.Integer(), nullable=False),
            sa.Column("at", INSTANT, nullable=False),
            sa.Column("idempotency_key", sa.String(255), nullable=True),
            sa.PrimaryKeyConstraint("id", name="pk_stock_adjustments"),
            sa.ForeignKeyConstraint(["sku"], ["stock_items.sku"], name="fk_stock_adjustments_sku"),
            sa.ForeignKeyConstraint(
                ["client_id"], ["api_clients.id"], name="fk_stock_adjustments_client_id"
            ),
            sa.CheckConstraint("delta <> 0", name="ck_stock_adjustments_delta"),
            if_not_exists=True,
        )
        op.create_index("ix_stock_adjustments_sku", TABLE, ["sku", "id"], if_not_exists=True)
        op.create_index(
            "uq_stock_adjustments_idempotency_key",
            TABLE,
            ["client_id", "idempotency_key"],
            unique=True,
            if_not_exists=True,
        )
        if on_postgresql:
            op.drop_index(BY_SKU, if_exists=True, postgresql_concurrently=True)
            in_bytes = [sa.text('sku COLLATE "C"')]
            op.create_index(BY_SKU, "stock_items", in_bytes, postgresql_concurrently=True)


def downgrade() -> None:
    """What was adjusted stays so; who did it, and why, is lost."""
    if op.get_context().dialect.name == "postgresql":
        op.drop_index(BY_SKU, "stock_items")
    op.drop_table(TABLE)
