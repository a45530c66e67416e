"""What clients do with webhooks: they subscribe, and look at what became of each delivery."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Any

import sqlalchemy as sa

from orders.caches import CACHE_SECONDS
from orders.config import Settings
from orders.db.errors import translated
from orders.db.files import Room
from orders.db.ids import array_of, new_id
from orders.db.statements import FIRST, LAST, Position, Service, as_it_is
from orders.errors import KeyReused, StorageUnavailable
from orders.features.parts import named_id
from orders.features.signing.settings import SendingSettings
from orders.features.signing.signatures import new_secret
from orders.features.signing.urls import parsed
from orders.features.webhooks.errors import DeliveryNotFound, TooManyWebhooks, WebhookNotFound
from orders.features.webhooks.settings import WebhookSettings
from orders.hooks import CheckScheduler

SQL = Room("orders.features.webhooks")
#: How many subscriptions a client may have: each costs a delivery for each event.
MAX_SUBSCRIPTIONS = 10
#: How long the secrets before a rotation sign too.
OVERLAP_MS = 24 * 3600 * 1000
#: As `orders.features.webhooks.schemas` shows it.
Row = sa.Row[Any]


class Webhooks(Service):
    def __init__(self, engine: sa.Engine, scheduler: CheckScheduler, settings: Settings) -> None:
        super().__init__(engine)
        self._scheduler = scheduler
        self._settings = settings[WebhookSettings]
        self._allow_private = settings[SendingSettings].webhook_allow_private
        #: The subscriptions of a client, and until when they are cached.
        self._subscriptions: dict[str, tuple[float, Sequence[str]]] = {}

    # -- for clients -----------------------------------------------------------------------

    def subscribe(
        self, client_id: str, *, url: str, events: Sequence[str] | None, key: str | None = None
    ) -> tuple[dict[str, Any], str, bool]:
        """Send a client's events to a URL; None: all of them. Once for each idempotency key, if there is one.

        Returns also the secret that signs them, and whether the key was used before. Raises
        WebhookUrlNotAllowed, TooManyWebhooks, KeyReused.
        """
        parsed(url, allow_private=self._allow_private)
        secret = new_secret()
        made_id = new_id() if key is None else named_id(client_id, key)
        asked = f"{url} {events and ' '.join(events)}"
        with self._writing() as sql:
            SQL.lock_client(sql, client_id=client_id)
            new = SQL.subscribe(
                sql,
                id=made_id,
                client_id=client_id,
                url=url,
                events=events,
                reminds=self._settings.reminder_ms > 0,
                asked=asked,
                secret=secret,
            ).one_or_none()
            if new is None:
                made = SQL.get_made(sql, id=made_id).one()
                if made.asked != asked:
                    raise KeyReused
                secret = made.secret
            elif new.others >= MAX_SUBSCRIPTIONS:
                limit = MAX_SUBSCRIPTIONS
                raise TooManyWebhooks(f"The limit is {limit}.", limit=limit)
        self._subscriptions.pop(client_id, None)
        # As it was made, whatever was changed since.
        shown = {
            "id": made_id,
            "url": url,
            "events": events,
            "created_at": (new or made).created_at,
        }
        unset = ("paused_at", "pause_reason", "previous_secret_expires_at")
        return {**shown, **dict.fromkeys(unset)}, secret, new is None

    def subscriptions(
        self, client_id: str, *, page_size: int, after: Position | None = None
    ) -> list[Row]:
        """A client's subscriptions, oldest first."""
        find = (as_it_is, SQL.list_subscriptions)
        return self._page(*find, page_size, after, client_id=client_id)

    def subscription(self, client_id: str | None, subscription_id: str) -> Row:
        """None is any client's. Raises WebhookNotFound, for another client's too."""
        find = (as_it_is, WebhookNotFound, SQL.get_subscription)
        return self._one(*find, client_id=client_id, id=subscription_id)

    def change(
        self, client_id: str | None, subscription_id: str, changes: Mapping[str, Any]
    ) -> Row:
        """Change a subscription's ``url``, its ``events`` from now on (None: all), or whether it is ``paused``.

        While it is paused its deliveries are kept, and then sent, however many. Without a client, it is any
        client's. Raises WebhookNotFound, WebhookUrlNotAllowed.
        """
        url, paused = changes.get("url"), changes.get("paused")
        if url is not None:
            parsed(url, allow_private=self._allow_private)
        with self._autocommit() as sql:
            SQL.change_subscription(
                sql,
                client_id=client_id,
                id=subscription_id,
                url=url,
                paused=paused,
                has_events="events" in changes,
                events=changes.get("events"),
            )
        found = self.subscription(client_id, subscription_id)
        if paused is False:
            self._look_at(subscription_id)
        return found

    def ping(self, client_id: str, subscription_id: str) -> Row:
        """Send a message about nothing. Raises WebhookNotFound."""
        made_id: str | None
        with self._autocommit() as sql:
            made_id = SQL.ping(sql, client_id=client_id, id=subscription_id).scalar()
        if made_id is None:
            raise WebhookNotFound
        self._look_at(subscription_id)
        return self.delivery(client_id, made_id)

    def rotate_secret(self, client_id: str, subscription_id: str) -> tuple[Row, str]:
        """Make a new secret; for a day those before it sign too. Raises WebhookNotFound."""
        secret = new_secret()
        with self._writing() as sql:
            if SQL.lock_subscription(sql, client_id=client_id, id=subscription_id).first():
                values = {"subscription_id": subscription_id, "secret": secret, "ms": OVERLAP_MS}
                SQL.rotate_secret(sql, **values)
        return self.subscription(client_id, subscription_id), secret

    def unsubscribe(self, client_id: str, subscription_id: str) -> None:
        """Send nothing more, not even what is waiting, which is pruned. Raises WebhookNotFound.

        Its secret stays, for who repeats the request that made it.
        """
        with self._autocommit() as sql:
            if not SQL.unsubscribe(sql, client_id=client_id, id=subscription_id).rowcount:
                raise WebhookNotFound

    def deliveries(
        self,
        client_id: str | None,
        subscription_id: str,
        *,
        status: str | None,
        page_size: int,
        after: datetime | None = None,
        before: Position | None = None,
    ) -> list[Row]:
        """A subscription's deliveries between two times, newest first. None is any client's.

        Raises WebhookNotFound.
        """
        self.subscription(client_id, subscription_id)
        before_at, before_id = before or LAST
        return self._all(
            as_it_is,
            SQL.list_deliveries,
            subscription_id=subscription_id,
            status=status,
            after_at=after or FIRST.at,
            before_at=before_at,
            before_id=before_id,
            page_size=page_size,
        )

    def delivery(self, client_id: str | None, delivery_id: str) -> Row:
        """None is any client's. Raises DeliveryNotFound."""
        find = (as_it_is, DeliveryNotFound, SQL.get_delivery)
        return self._one(*find, client_id=client_id, id=delivery_id)

    def redeliver(self, client_id: str | None, delivery_id: str) -> Row:
        """Send a delivery again, under the same id, with all of its attempts ahead; None: any client's.

        Raises DeliveryNotFound.
        """
        with self._autocommit() as sql:
            SQL.redeliver(sql, client_id=client_id, id=delivery_id)
        again = self.delivery(client_id, delivery_id)
        self._look_at(again.subscription_id)
        return again

    # -- for orders -----------------------------------------------------------------------

    def committed(self, client_ids: Iterable[str], connection: sa.Connection) -> None:
        """Have the subscriptions of clients with new events looked at, whatever those are. One that was made
        elsewhere in the last few seconds may have to wait for the sweep.
        """
        now, ids = monotonic(), {*client_ids}
        unknown = [each for each in ids if self._subscriptions.get(each, (0.0, ()))[0] <= now]
        if unknown:
            with suppress(StorageUnavailable), translated():
                for row in SQL.list_ids(connection, client_ids=array_of(unknown)):
                    found = now + CACHE_SECONDS, row.subscription_ids
                    self._subscriptions[row.client_id] = found
        for each in ids:
            for subscription_id in self._subscriptions.get(each, (0.0, ()))[1]:
                self._look_at(subscription_id)

    def _look_at(self, subscription_id: str) -> None:
        """Have a worker look whether something is to be sent, even if that has killed workers."""
        self._scheduler.schedule(subscription_id, delay_ms=0, even_if_dead=True)


def messages_about(connection: sa.Connection, events: Sequence[Any]) -> dict[int, Sequence[str]]:
    """The ids of the messages about events of the feed: see `orders.feature`."""
    rows = SQL.list_ids_about(
        connection,
        order_ids=array_of({each.order_id for each in events}),
        event_ids=array_of(str(each.sequence) for each in events),
    )
    return {row.event_id: row.ids for row in rows}
