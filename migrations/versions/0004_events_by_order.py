"""Events are keyed by their order and id: one index less for each event.

On PostgreSQL the index is built concurrently; queries wait only while the keys are swapped, and for
what already reads events at that moment. After an interrupted run, the next one starts over. The
previous version works before, during and after the migration.

On SQLite nothing changes: it generates ids only for a single-column key.
"""

from alembic import op

revision = "0004_events_by_order"
down_revision = "0003_keys_on_orders"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        with op.get_context().autocommit_block():
            _swap_key("order_id, id")
            op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_order_events_order")


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        with op.get_context().autocommit_block():
            op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_order_events_order")
            op.execute(
                "CREATE INDEX CONCURRENTLY ix_order_events_order ON order_events (order_id, id)"
            )
            _swap_key("id")


def _swap_key(columns: str) -> None:
    op.execute("DROP INDEX CONCURRENTLY IF EXISTS pk_order_events_new")
    op.execute(f"CREATE UNIQUE INDEX CONCURRENTLY pk_order_events_new ON order_events ({columns})")
    op.execute(
        "ALTER TABLE order_events DROP CONSTRAINT pk_order_events, "
        "ADD CONSTRAINT pk_order_events PRIMARY KEY USING INDEX pk_order_events_new"
    )
