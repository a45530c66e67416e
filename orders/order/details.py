"""A client's own names for an order, its reference and its metadata, which may change and be erased.

They decide nothing, and are the only part of an order that changes. The reference is also where lists
look for it: in the row of an unpaid order, or in the terminal event of one that has ended.
"""

from typing import Any

import sqlalchemy as sa

from orders.order.operations import OWN_UNPAID, is_of_version
from orders.sql.expressions import one_of
from orders.sql.steps import Operation, Step
from orders.sql.tables import TERMINAL, order_events, orders, unpaid_orders, webhook_deliveries

p = sa.bindparam

OWN_ENDING = (
    order_events.c.order_id == p("for_id"),
    order_events.c.client_id == p("for_client"),
    TERMINAL,
)


def _given(column: sa.Column[Any], name: str) -> sa.ColumnElement[Any]:
    """The parameter ``for_name`` if ``has_name``, else what is there."""
    new = p(f"for_{name}", type_=column.type)
    return sa.case((p(f"has_{name}", type_=sa.Boolean), new), else_=column)


@Operation
def describe(step: Step) -> sa.Select[Any]:
    """Change the reference or the metadata of a client's own order, if it has an expected version.

    Returns a row if they are changed. An order that ends after the statement has begun is neither
    unpaid nor has ended: only the next statement sees how.
    """
    changed = (
        step(
            name,
            sa.update(table)
            .where(*own, is_of_version(table.c.version))
            .values(
                version=table.c.version + 1,
                client_reference=_given(table.c.client_reference, "reference"),
            )
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
            client_reference=_given(orders.c.client_reference, "reference"),
            metadata=_given(orders.c.metadata, "metadata"),
        )
        .returning(orders.c.id),
    )
    # A message that is still to be sent, or may be sent again, is written anew then.
    step(
        "messages",
        sa.update(webhook_deliveries)
        .where(
            one_of(webhook_deliveries.c.order_id, sa.select(described.c.id)),
            webhook_deliveries.c.body.is_not(None),
        )
        .values(body=sa.null()),
    )
    return sa.select(described)
