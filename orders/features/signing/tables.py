"""The kind of table that secrets are in."""

import sqlalchemy as sa

from orders.db.base import Id, Instant, metadata


def secrets_of(name: str, owner: str, owners: str) -> sa.Table:
    """In plain text: a signature is an HMAC, which needs the secret itself, so a hash would not do."""
    return sa.Table(
        name,
        metadata,
        sa.Column(owner, Id, sa.ForeignKey(f"{owners}.id"), primary_key=True),
        sa.Column("id", Id, primary_key=True),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("expires_at", Instant),
    )
