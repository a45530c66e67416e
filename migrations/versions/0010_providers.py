"""Endpoints to which payment providers send signed webhooks.

Two new tables, which the previous version neither reads nor writes.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010_providers"
down_revision = "0009_webhooks"
branch_labels = None
depends_on = None

ID = postgresql.UUID(as_uuid=False).with_variant(sa.CHAR(36), "sqlite")
INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "provider_endpoints",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("provider", sa.String(50), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_provider_endpoints"),
        sa.ForeignKeyConstraint(
            ["client_id"], ["api_clients.id"], name="fk_provider_endpoints_client_id"
        ),
        if_not_exists=True,
    )
    op.create_index(
        "ix_provider_endpoints_client",
        "provider_endpoints",
        ["client_id", "id"],
        if_not_exists=True,
    )
    op.create_table(
        "provider_secrets",
        sa.Column("endpoint_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("endpoint_id", "id", name="pk_provider_secrets"),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["provider_endpoints.id"], name="fk_provider_secrets_endpoint_id"
        ),
        if_not_exists=True,
    )


def downgrade() -> None:
    """Endpoints are lost; what their providers reported stays."""
    op.drop_table("provider_secrets")
    op.drop_table("provider_endpoints")
