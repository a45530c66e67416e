"""W: every event of a client with a subscription has one delivery, and no other event has any."""

from collections import Counter
from collections.abc import Iterable, Iterator

import sqlalchemy as sa

from orders.features.webhooks.service import Webhooks
from orders.features.webhooks.tables import webhook_deliveries
from tests.kit.checker import History, Violation
from tests.kit.receiver import Receiver
from tests.kit.site import Site


def violations(history: History, *, drained: bool) -> Iterator[Violation]:
    """Subscriptions here are to all events, older than their client's orders, and never deleted."""
    subscribers: dict[str, list[str]] = {}
    for subscription in history.rows["webhook_subscriptions"]:
        subscribers.setdefault(subscription.client_id, []).append(subscription.id)
    wanted = Counter(
        (subscription_id, event.order_id, event.id, event.type)
        for event in history.events
        for subscription_id in subscribers.get(history.orders[event.order_id].client_id, ())
    )
    deliveries = history.rows["webhook_deliveries"]
    made = Counter(
        (row.subscription_id, row.order_id, row.event_id, row.type)
        for row in deliveries
        if row.type != "order.expiring"
    )
    for key in wanted.keys() | made.keys():
        if wanted[key] != made[key]:
            yield Violation("W", f"{key} has {made[key]} deliveries, not {wanted[key]}")
    if drained:
        for row in deliveries:
            if row.status != "delivered":
                yield Violation("W", f"delivery {row.id} is {row.status} after the drain")


class Watch:
    """A receiver of all that is sent to a client during a long run."""

    def __init__(self, site: Site, client_id: str) -> None:
        self._site, self._receiver = site, Receiver()
        site.services[Webhooks].subscribe(client_id, url=self._receiver.url, events=None)

    def left(self, *, at_all: bool = False) -> int:
        """How many messages are yet to be sent, or are yet to be sent at all."""
        pending = webhook_deliveries.c.status == "pending"
        if at_all:
            pending &= webhook_deliveries.c.attempts == 0
        with self._site.services.engine.connect() as connection:
            return connection.scalar(sa.select(sa.func.count()).where(pending)) or 0

    def violations(self, history: History) -> list[Violation]:
        """Messages that were sent, it is said, and never came."""
        came = {message.id for message in self._receiver.messages}
        return [
            Violation("W", f"delivery {row.id} never came")
            for row in history.rows["webhook_deliveries"]
            if row.status == "delivered" and row.id not in came
        ]

    def lines(self) -> Iterable[tuple[str, str]]:
        """For a table about the run."""
        messages = self._receiver.messages
        came = {message.id for message in messages}
        yield "webhooks, sent twice", f"{len(came):,}, {len(messages) - len(came):,}"

    def close(self) -> None:
        self._receiver.close()
