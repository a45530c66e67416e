"""The table of seats, and the index that the sweep reads."""

import sqlalchemy as sa
from alembic import op

revision = "seats_0001"
down_revision = None
branch_labels = None
depends_on = None

HELD = sa.text("status = 'held'")


def upgrade() -> None:
    op.create_table(
        "seats",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False, server_default="free"),
        sa.Column("held_by", sa.Text),
        sa.Column("held_until", sa.TIMESTAMP(timezone=True)),
    )
    op.create_index(
        "ix_seats_held", "seats", ["held_until", "id"], postgresql_where=HELD, sqlite_where=HELD
    )


def downgrade() -> None:
    op.drop_table("seats")
