"""Seats that are held for a while and then free again, with a table of your own as the truth.

python -m worker run examples.seats:flows    # with DATABASE_URL and REDIS_URL
"""

import os
from collections.abc import Sequence

import sqlalchemy as sa

from worker import DelayQueue, Flow, connect
from worker.records import Records

seats = sa.Table(
    "seats",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False, server_default="free"),
    sa.Column("held_until", sa.TIMESTAMP(timezone=True)),
)
held, free = seats.c.status == "held", seats.c.status == "free"


def release(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Nobody has paid for these in time. They are locked until this transaction ends."""
    connection.execute(seats.update().where(seats.c.id.in_(ids)).values(status="free"))


engine = sa.create_engine(os.environ["DATABASE_URL"])  # nothing is connected yet
queue = DelayQueue(connect(os.environ["REDIS_URL"]), "seat-holds")
due = seats.c.held_until
holds = Records(engine, id=seats.c.id, due=due, pending=held, handle=release, queue=queue)
holds.index()  # created with the table


def flows() -> list[Flow]:
    return [holds.flow()]


def hold(connection: sa.Connection, seat: str, seconds: float) -> bool:
    """Hold a free seat; returns whether it was free."""
    until = seats.update().values(status="held", held_until=holds.after(seconds))
    found = connection.execute(until.where(seats.c.id == seat, free))
    holds.schedule(connection, seat)  # once the transaction has committed
    return found.rowcount == 1


def pay(connection: sa.Connection, seat: str) -> bool:
    """Sell a held seat; returns whether it was still held."""
    sold = seats.update().values(status="sold").where(seats.c.id == seat, held)
    return connection.execute(sold).rowcount == 1
