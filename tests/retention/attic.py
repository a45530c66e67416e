"""A service that keeps orders for a month."""

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from orders.db.base import Instant, metadata
from orders.db.ids import first_id_from
from orders.db.statements import FIRST
from orders.db.tables import orders
from orders.features.retention.service import Retention
from tests.kit.api import Api, content
from tests.providers.provider import Provider  # <providers/>

DAYS = 30


#: What has an order's id, or belongs to what has.
OF_ORDERS = (
    *("orders", "unpaid_orders", "order_items", "order_events", "payments", "payment_entries"),
    "payment_attempts",  # <providers/>
    "webhook_deliveries",  # <webhooks/>
)
#: What names an order and may stay when it is deleted.
BESIDE = (
    "provider_messages",  # <providers/>
)


class Attic:
    """A service that keeps orders for a month, in a process whose clock says so, too."""

    def __init__(self, api: Api) -> None:
        self.api, self.services = api, api.services
        self.bank = Provider(api)  # <providers/>

    def place(self, **body: Any) -> str:
        return str(content(self.api.place(**body))["id"])

    def paid(self, reference: str = "tx-1", **body: Any) -> str:
        order_id = self.place(**body)
        assert content(self.api.pay(order_id, reference))["status"] == "applied"
        return order_id

    def refund(self, reference: str) -> None:
        """Send back all of the money with this reference."""
        found = self.api.send("GET", f"/v1/payments?provider=bank&reference={reference}")
        [payment] = content(found)["data"]
        content(
            self.api.send("POST", f"/v1/payments/{payment['id']}/refund", {"reference": "re-0"})
        )

    def cancelled(self, **body: Any) -> str:
        order_id = self.place(**body)
        content(self.api.send("POST", f"/v1/orders/{order_id}/cancel"))
        return order_id

    def age(self, days: float = DAYS + 1) -> None:
        """Have everything have happened so long ago. The id of an order is its age."""
        earlier = sa.literal(timedelta(days=days), sa.Interval)
        with self.services.engine.begin() as connection:
            connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
            for table in (metadata.tables[name] for name in OF_ORDERS):
                moved = {each: each - earlier for each in table.c if each.type is Instant}
                if moved:
                    connection.execute(sa.update(table).values(moved))
            for order_id, at in connection.execute(sa.select(orders.c.id, orders.c.created_at)):
                old = first_id_from(at)[:13] + order_id[13:]
                for table in (metadata.tables[name] for name in (*OF_ORDERS, *BESIDE)):
                    column = orders.c.id if table is orders else table.c.get("order_id")
                    if column is not None:
                        changed = sa.update(table).where(column == order_id)
                        connection.execute(changed.values({column: old}))

    def ids(self) -> list[str]:
        with self.services.engine.connect() as connection:
            return [*connection.execute(sa.select(orders.c.id).order_by(orders.c.id)).scalars()]

    def delete(self, not_after: datetime | None = None) -> int:
        moment = not_after or datetime.now(UTC)
        return self.services[Retention].delete(FIRST.id, 100, moment).orders

    def empty(self) -> None:
        with self.services.engine.begin() as connection:
            connection.execute(sa.text(f"TRUNCATE {', '.join((*OF_ORDERS, *BESIDE))}"))

    def rows(self) -> dict[str, int]:
        """How many rows there are of orders and what belongs to them, by table."""
        with self.services.engine.connect() as connection:
            counts = {
                name: len(connection.execute(sa.select(metadata.tables[name])).all())
                for name in OF_ORDERS
            }
        return {name: count for name, count in counts.items() if count}
