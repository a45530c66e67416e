"""What the doctor and the metrics read of providers' messages."""

from collections.abc import Iterator

import sqlalchemy as sa

from orders.features.parts import Figure
from orders.features.providers.domain import MOST_WAITING, MessageStatus
from orders.features.providers.service import Providers
from worker import Finding
from worker.findings import failure, ok, warning

#: How many are named.
NAMED = 5


def inbox(sql: sa.Connection) -> Finding:
    name = "orders.inbox"
    providers = Providers(sql)
    waiting = providers.waiting()
    oldest = providers.messages(MessageStatus.WAITING, page_size=NAMED)
    if not oldest:
        return ok(name, "no provider's message waits for a person")
    listed = "; ".join(f"{each.id} of {each.client}: {each.note}" for each in oldest)
    since = f"since {oldest[0].created_at:%Y-%m-%d %H:%M} UTC"
    advice = (
        "They may report money that the service does not know of: python -m orders providers inbox "
        "shows them. Record what they report, then replay or dismiss them."
    )
    if waiting.messages < MOST_WAITING:
        summary = f"{waiting.messages} of providers' messages wait, {since}: {listed}"
        return warning(name, summary, advice)
    summary = f"{MOST_WAITING:,} or more of providers' messages wait, {since}: {listed}"
    advice += " An endpoint that has so many gets 503 for what cannot be recorded."
    return failure(name, summary, advice)


def figures(sql: sa.Connection) -> Iterator[Figure]:
    waiting = Providers(sql).waiting()
    yield Figure(
        "orders_waiting_messages",
        f"Messages of payment providers that wait for a person, up to {MOST_WAITING:,}.",
        {(): waiting.messages},
    )
    yield Figure(
        "orders_oldest_waiting_message_age_seconds",
        "How long the oldest of them has waited; 0 when none does.",
        {(): waiting.oldest_ms / 1000},
    )
