"""What all tables belong to, and the kind of table that there are two of."""

import sqlalchemy as sa

from orders.sql.expressions import Id, Instant

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        # Checks have their whole names where they are: Alembic would put a prefix before them twice.
    }
)


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
