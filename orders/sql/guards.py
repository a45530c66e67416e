"""The tables of what keeps orders from being cancelled by mistake."""

import sqlalchemy as sa

from orders.sql.base import metadata
from orders.sql.expressions import Id, Instant

# Which queues are paused. Redis may lose a pause; a worker asks here: see `worker.records.pauses`.
queue_pauses = sa.Table(
    "queue_pauses",
    metadata,
    sa.Column("queue", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("paused_by", sa.Text, nullable=False),
    sa.Column("paused_at", Instant, nullable=False),
)

# When each API process last said that it serves.
api_signs = sa.Table(
    "api_signs",
    metadata,
    sa.Column("process", Id, primary_key=True),
    sa.Column("at", Instant, nullable=False),
)
