"""What an order says about a person: a client's own names for it, and where it came from.

They decide nothing, and are the only part of an order that changes, and that is erased. The reference is
also where lists look for it: in the row of an unpaid order, or in the terminal event of one that has ended.
"""

from typing import Any

import sqlalchemy as sa

from orders.order.operations import OWN_UNPAID, is_of_version
from orders.sql.expressions import Id, clock, one_of, text_literal
from orders.sql.steps import Operation, Step
from orders.sql.tables import TERMINAL, order_events, orders, unpaid_orders, webhook_deliveries

p = sa.bindparam

#: The columns that are marked as `PERSONAL` in the table of orders.
DETAILS = tuple(column.name for column in orders.c if column.info.get("personal"))
#: What erases all of them.
NO_DETAILS = dict.fromkeys(DETAILS)
OWN_ENDING = (
    order_events.c.order_id == p("for_id"),
    order_events.c.client_id == p("for_client"),
    TERMINAL,
)


def _given(table: sa.Table) -> dict[str, sa.ColumnElement[Any]]:
    """Of each detail that the table has, the parameter ``for_name`` if ``has_name``, else what is there."""
    columns = [table.c[name] for name in DETAILS if name in table.c]
    return {
        each.name: sa.case(
            (p(f"has_{each.name}", type_=sa.Boolean), p(f"for_{each.name}", type_=each.type)),
            else_=each,
        )
        for each in columns
    }


@Operation
def describe(step: Step) -> sa.Select[Any]:
    """Change details of a client's own order, if it has an expected version.

    Returns a row if they are changed. An order that ends after the statement has begun is neither
    unpaid nor has ended: only the next statement sees how.
    """
    changed = (
        step(
            name,
            sa.update(table)
            .where(*own, is_of_version(table.c.version))
            .values(version=table.c.version + 1, **_given(table))
            .returning(table.c.order_id),
        )
        for name, table, own in (
            ("unpaid", unpaid_orders, OWN_UNPAID),
            ("ended", order_events, OWN_ENDING),
        )
    )
    either = sa.union_all(*(sa.select(each.c.order_id) for each in changed)).subquery("either")
    described = step(
        "described",
        sa.update(orders)
        .where(one_of(orders.c.id, sa.select(either.c.order_id)))
        .values(
            changed_at=clock(),
            # It was made of the details, and they could be guessed from it.
            fingerprint=text_literal("erased:"),
            **_given(orders),
        )
        .returning(orders.c.id),
    )
    return sa.select(described)


# Forget what was sent about an order, and answered, so that it is written anew if it is sent again. Each row
# is written: whoever is about to write what they read before is refused.
FORGET_SENT = (
    sa.update(webhook_deliveries)
    .where(webhook_deliveries.c.order_id == p("for_id", type_=Id))
    .values(body=None, last_body=None)
)
