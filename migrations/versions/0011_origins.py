"""Orders know the request that placed them, and its trace: for the log and for OpenTelemetry.

A nullable column without a default: PostgreSQL adds it without rewriting the table. The previous version
works before, during and after the migration; what it places has no origin.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011_origins"
down_revision = "0010_providers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("orders")}
    if "origin" not in there:
        op.add_column("orders", sa.Column("origin", sa.String(120), nullable=True))


def downgrade() -> None:
    """Origins are lost: what is cancelled later cannot be traced to its request."""
    with op.batch_alter_table("orders") as batch:
        batch.drop_column("origin")
