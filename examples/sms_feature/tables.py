"""The table of messages, and the trigger that fills it: see ``outbox.sql``."""

import sqlalchemy as sa

from orders.db.base import TRIGGERS, Id, Instant, index_by, metadata

# A message that is still to be sent, about one event. It has nothing about a person: that is read when it is sent.
sms_messages = sa.Table(
    "sms_messages",
    metadata,
    sa.Column("event_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("order_id", Id, nullable=False),
    sa.Column("due_at", Instant, nullable=False),
)
index_by("ix_sms_messages_due", *sms_messages.c["due_at", "event_id"])  # what the sweep reads
TRIGGERS.append("order_events.sms_enqueue")
