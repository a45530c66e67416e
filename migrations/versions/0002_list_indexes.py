"""Indexes in the order of every list, so that a page costs the same however many orders there are.

On PostgreSQL they are built concurrently, so they block nobody. An interrupted build leaves an
invalid index behind, which the next run replaces. The version before this one lists by the index
that goes; it works without it, but slowly.
"""

from alembic import op

revision = "0002_list_indexes"
down_revision = "0001_first_tables"
branch_labels = None
depends_on = None

BY_CUSTOMER = {"ix_orders_customer": ["customer_id", "id"]}
BY_STATUS = {
    "ix_orders_created": ["customer_id", "status", "created_at", "id"],
    # created_at bounds nothing here, but is compared without reading the order.
    "ix_orders_expires": ["customer_id", "status", "expires_at", "id", "created_at"],
}


def upgrade() -> None:
    _replace(BY_CUSTOMER, BY_STATUS)


def downgrade() -> None:
    _replace(BY_STATUS, BY_CUSTOMER)


def _replace(old: dict[str, list[str]], new: dict[str, list[str]]) -> None:
    concurrently = op.get_context().dialect.name == "postgresql"
    with op.get_context().autocommit_block():
        for name, columns in new.items():
            op.drop_index(name, "orders", if_exists=True, postgresql_concurrently=concurrently)
            op.create_index(name, "orders", columns, postgresql_concurrently=concurrently)
        for name in old:
            op.drop_index(name, "orders", if_exists=True, postgresql_concurrently=concurrently)
