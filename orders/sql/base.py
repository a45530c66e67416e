"""What all tables belong to, the kind of table that there are two of, and the kind of index."""

from typing import Any

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

#: Marks a column of `orders` that may be about a person, so that it is erased: see `orders.order.details`.
PERSONAL = {"personal": True}


def index_by(
    name: str,
    first: sa.Column[Any],
    *more: sa.Column[Any],
    where: sa.ColumnElement[bool] | None = None,
) -> sa.Index:
    """An index for statements with a condition on its first column, and for no others.

    A planner thinks a table empty for as long as it was when it was last analysed, and a whole index as
    cheap to read as one entry. So it would look up many ids by any index that contains them, and read all of
    that for each. It does not where it cannot prove the index's own condition.
    """
    known = first.is_not(None)
    return sa.Index(name, first, *more, postgresql_where=known if where is None else known & where)


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
