"""What the operators' page shows of the webhooks about an order."""

from collections.abc import Iterator

import sqlalchemy as sa

from orders.features.parts import Step
from orders.features.webhooks.domain import DeliveryStatus
from orders.features.webhooks.service import SQL

#: More deliveries are not shown.
MOST = 100


def steps(sql: sa.Connection, order_id: str) -> Iterator[Step]:
    for row in SQL.list_about(sql, order_id=order_id, most=MOST):
        is_paused = row.paused_at is not None
        is_pending = row.status == DeliveryStatus.PENDING
        said = (
            row.url,
            f"answered {row.last_status}" if row.last_status else row.last_error,
            f"{row.attempts:,} attempts" if row.attempts > 1 else "",
            "its webhook is paused" if is_pending and is_paused else "",
            "next attempt" if is_pending and not is_paused else "",
        )
        yield Step(
            at=row.delivered_at or row.last_attempt_at or row.created_at,
            kind="sent",
            title=f"webhook {row.type} {row.status}",
            text=", ".join(filter(None, said)),
            then=row.due_at if is_pending and not is_paused else None,
            is_bad=row.status == DeliveryStatus.DEAD,
        )
