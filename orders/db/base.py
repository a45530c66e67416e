"""What all tables belong to, and the kind of index."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

#: A moment in whole milliseconds; as the session's time zone has it, in UTC.
Instant = sa.TIMESTAMP(timezone=True)
#: A UUID, which Python has as text.
Id = postgresql.UUID(as_uuid=False)

#: The ``info`` of each column that may hold what is about a person: it is exported and erased on request.
PERSONAL = {"personal": True}
#: What `orders.db.schema` looks for beside tables, from whoever needs it: triggers as ``table.trigger``, and sequences.
TRIGGERS: list[str] = []
SEQUENCES: list[str] = []

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        # Checks have their whole names where they are: Alembic would put a prefix before them twice.
    }
)


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
