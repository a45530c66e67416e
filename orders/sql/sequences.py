"""How statements announce the ids of the events that they write, so that readers know which may still come."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import REGCLASS

from orders.sql.expressions import text_literal

#: That of the column `id` of `order_events`.
SEQUENCE = "order_events_id_seq"
#: The upper 16 bits of our locks' names, so that they are nobody else's.
MARK = 0x0E7E


def announced() -> sa.ColumnElement[bool]:
    """Always true. It takes a number from the sequence and locks it until the transaction ends: all ids
    that the transaction takes afterwards are greater.

    As a condition it is evaluated once, before the first row.
    """
    number = sa.func.nextval(sa.cast(text_literal(SEQUENCE), REGCLASS), type_=sa.BigInteger)
    name = sa.literal_column(str(MARK << 48), sa.BigInteger) + number
    return sa.select(sa.func.pg_advisory_xact_lock(name)).scalar_subquery().is_not(None)
