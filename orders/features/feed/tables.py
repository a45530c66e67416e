"""What the feed needs in the database: see ``orders/features/feed/announce.sql``."""

from orders.db.base import SEQUENCES, TRIGGERS

TRIGGERS.append("order_events.feed_announce")
SEQUENCES.append("order_events_id_seq")
