"""The application with a subscription."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from devtools.processes import wait_until
from orders.db.tables import unpaid_orders
from orders.features.webhooks.flow import Deliverer, webhook_flow
from orders.features.webhooks.tables import webhook_deliveries, webhook_subscriptions
from tests.kit.api import Api
from tests.kit.expiring import expire_now
from tests.kit.moments import later, now
from tests.kit.receiver import Receiver
from worker import Outcome, Task


class Hooked:
    """The application with a subscription, its receiver, and the flow that sends."""

    def __init__(self, api: Api, receiver: Receiver) -> None:
        self.api = api
        self.receiver = receiver
        self.flow = webhook_flow(api.services)
        self.id = self.secret = ""

    @classmethod
    def of(cls, first: "Hooked") -> "Hooked":
        """Another worker."""
        return cls(first.api, first.receiver)

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """What the API answers."""
        return self.api.send(method, path, body, **more).json

    def subscribe(self, *, key: str = "customer", url: str = "", **body: Any) -> Any:
        sent = {"url": url or self.receiver.url, **body}
        made = self.api.send("POST", "/v1/webhooks", sent, key=key)
        assert made.status_code == 201, made.json
        return made.json

    def change(self, **body: Any) -> Any:
        changed = self.api.send("PATCH", f"/v1/webhooks/{self.id}", body)
        assert changed.status_code == 200
        return changed.json

    def due(self) -> dict[str, str]:
        """The deliveries that are due and may be sent, each with its subscription."""
        column = webhook_deliveries.c
        paused = sa.select(webhook_subscriptions.c.id).where(
            webhook_subscriptions.c.paused_at.is_not(None)
        )
        pending = sa.select(column.id, column.subscription_id).where(
            column.status == "pending",
            column.due_at <= now(),
            column.subscription_id.not_in(paused),
        )
        with self.api.services.engine.connect() as connection:
            return {row.id: row.subscription_id for row in connection.execute(pending)}

    def send_due(self) -> int:
        """Send what is due, and return how many there were."""
        due = self.due()
        self.wake(*{*due.values()})
        return len(due)

    def wake(self, *ids: str) -> Mapping[str, Outcome] | None:
        """Run these tasks, and wait until nothing is sent any more."""
        outcomes = self.flow.handler([Task(each) for each in ids])
        wait_until(self.is_idle, "all to be sent")
        return outcomes

    def is_idle(self) -> bool:
        assert isinstance(self.flow.handler, Deliverer)
        turns = self.flow.handler._turns
        return not (turns._busy or turns._waiting)

    def drain(self) -> list[str]:
        """Send what is due, and return the types of what the receiver has."""
        self.send_due()
        return self.receiver.types()

    def move(self, ms: int) -> None:
        """Let time pass for deliveries."""
        moved = sa.update(webhook_deliveries).values(
            due_at=later(webhook_deliveries.c.due_at, "shift")
        )
        with self.api.services.engine.begin() as connection:
            connection.execute(moved, {"shift": -ms})

    def move_order(self, order_id: str, expires_in_ms: int) -> None:
        moved = sa.update(unpaid_orders).where(unpaid_orders.c.order_id == order_id)
        with self.api.services.engine.begin() as connection:
            connection.execute(
                moved.values(expires_at=later(now(), "for_ms")), {"for_ms": expires_in_ms}
            )

    def deliveries(self, **query: Any) -> list[dict[str, Any]]:
        """The oldest first."""
        path = f"/v1/webhooks/{self.id}/deliveries"
        listed = self.api.send("GET", path, query_string=query)
        assert listed.status_code == 200
        page: Any = listed.json
        return list(reversed(page["data"]))

    def set_created(self, delivery_id: str, at: str) -> None:
        one = sa.update(webhook_deliveries).where(webhook_deliveries.c.id == delivery_id)
        with self.api.services.engine.begin() as connection:
            connection.execute(one.values(created_at=datetime.fromisoformat(at)))

    def place(self, **body: Any) -> dict[str, Any]:
        placed = self.api.place(**body)
        assert placed.status_code == 201
        order: dict[str, Any] = placed.get_json()
        return order

    def expire(self, order_id: str) -> None:
        self.move_order(order_id, -1)
        assert expire_now(self.api.services.orders, [order_id]) == {}
