"""A SQL table as a flow's truth: its sweep, its probe and its handler.

A record is a row with an id, a time at which it is due, and a condition that says whether it is still
pending. `Records` turns such a table into a flow::

    def release(connection, ids):
        connection.execute(seats.update().where(seats.c.id.in_(ids)).values(status="free"))

    holds = Records(
        engine,
        id=seats.c.id,
        due=seats.c.held_until,
        pending=seats.c.status == "held",
        handle=release,
        queue=DelayQueue(client, "seat-holds"),
    )
    scheduler = BatchScheduler(holds.queue)  # in the background: nobody waits for Redis

    with engine.begin() as connection:
        connection.execute(seats.insert().values(id="A1", held_until=holds.after(600)))
    scheduler.schedule("A1", delay_ms=600_000)  # after the commit; if this is lost, the sweep finds the row

A record's id, as text, is its task's id. This is the only part of this package that needs SQLAlchemy.
"""

try:
    import sqlalchemy  # noqa: F401  here, where its absence can be explained
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "Records need SQLAlchemy: pip install 'sqlalchemy>=2.1'", name=missing.name
    ) from missing

from .outages import CONFLICT_RETRIES
from .pauses import TablePauses, pauses_table
from .records import Records

__all__ = ["CONFLICT_RETRIES", "Records", "TablePauses", "pauses_table"]
