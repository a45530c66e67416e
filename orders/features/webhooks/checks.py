"""What the doctor examines of webhooks."""

import sqlalchemy as sa

from orders.features.signing.urls import parsed
from orders.features.webhooks.service import SQL
from worker import Finding
from worker.findings import ok, warning


def webhooks(sql: sa.Connection) -> Finding:
    rows = SQL.list_failing(sql).all()
    name = "orders.webhooks"
    if not rows:
        return ok(name, "no endpoint has failed a webhook 3 times")
    listed = "; ".join(
        f"{row.subscription_id} at {parsed(row.url, allow_private=True).host}: since {row.since:%Y-%m-%d %H:%M} UTC, "
        f"{row.error or f'HTTP {row.status}'}"
        for row in rows
    )
    advice = (
        "Tell its client: GET /v1/webhooks/ID/deliveries shows what the endpoint answers. They are retried for "
        "three days, and can be sent again after that. If every endpoint fails, this network blocks outgoing HTTPS."
    )
    return warning(name, f"keeps failing: {listed}", advice)
