"""SMS: who has placed an order is told when it is cancelled."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.request import Request, urlopen

import sqlalchemy as sa

from examples.sms_feature import tables
from examples.sms_feature.tables import sms_messages
from orders.db.files import Room
from orders.db.tables import queue_pauses
from orders.feature import Feature
from orders.wiring import Services
from worker import DelayQueue, Flow
from worker.records import Records

SQL = Room("examples.sms_feature")
SMS_QUEUE = "sms"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmsSettings:
    #: Takes messages as JSON, each once by its Idempotency-Key.
    sms_url: str = "http://localhost:9000/messages"


def sms_flow(services: Services) -> Flow:
    """Send each message in the transaction that deletes it."""
    url = services.settings[SmsSettings].sms_url

    def send(connection: sa.Connection, ids: Sequence[int]) -> None:
        for message in SQL.list_messages(connection, ids=ids):
            text = f"Your order {message.order_id} was cancelled."
            body = json.dumps({"to": message.phone, "text": text})
            # Sent again, with the same key, if this process or the database dies before the commit.
            key = {"Idempotency-Key": f"cancelled-{message.event_id}"}
            urlopen(Request(url, body.encode(), key), timeout=5).close()  # noqa: S310  the operator's URL
        SQL.delete_messages(connection, ids=ids)

    return Records(
        services.engine,
        id=sms_messages.c.event_id,
        due=sms_messages.c.due_at,
        pending=sa.true(),  # until it is deleted
        handle=send,
        queue=DelayQueue(services.redis, SMS_QUEUE),
        pauses=queue_pauses,
    ).flow(probe=services.check_ready, batch_size=1, **services.settings.of_each_flow)


FEATURE = Feature(
    name="sms",
    tables=tables,
    settings=(SmsSettings,),
    queues=(SMS_QUEUE,),
    flows=lambda services: [sms_flow(services)],
)
