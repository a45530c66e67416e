"""The tables of freezes, and of what opens them."""

import sqlalchemy as sa

from orders.db.base import Id, Instant, metadata

# Each is in force, with a row in `stops`, until it has given back the time that it took.
freezes = sa.Table(
    "freezes",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("client_id", Id, sa.ForeignKey("api_clients.id")),  # null: everybody's
    sa.Column("reason", sa.String(200), nullable=False),
    sa.Column("opened_by", sa.String(100), nullable=False),  # see `orders.features.freezes.domain`
    sa.Column("opened_at", Instant, nullable=False),
    sa.Column("ends_at", Instant, nullable=False),
    sa.Column("asked_ms", sa.BigInteger, nullable=False),  # how long it was to last at first
    sa.Column("give_back_seconds", sa.Integer, nullable=False),
    sa.Column("thawed_by", sa.String(100)),  # null: it was not ended by anybody
    sa.Column("given_back", sa.Integer, nullable=False, server_default="0"),  # how many orders
    sa.Column("given_back_at", Instant),  # null: it is still in force
    sa.CheckConstraint("give_back_seconds >= 0", name="ck_freezes_give_back_seconds"),
)
# Those in force.
sa.Index(
    "ix_freezes_in_force",
    freezes.c.ends_at,
    freezes.c.id,
    postgresql_where=freezes.c.given_back_at.is_(None),
)
sa.Index("ix_freezes_opened", freezes.c.opened_at, freezes.c.id)

# When each API process last said that it serves.
api_signs = sa.Table(
    "api_signs",
    metadata,
    sa.Column("process", Id, primary_key=True),
    sa.Column("at", Instant, nullable=False),
)
