"""Seats that are held for ten minutes and become free again unless they are paid for.

python -m examples seat_reservation

A table, a flow and routes. On your own servers, with DATABASE_URL and REDIS_URL:

flask --app examples.seat_reservation run    # then INSERT INTO seats (id) VALUES ('A1')
python -m worker run examples.seat_reservation:flows
curl -X POST 'localhost:5000/seats/A1/hold?by=ada'
"""

import os
from collections.abc import Sequence

import sqlalchemy as sa
from flask import Flask, abort, request

from devtools.processes import wait_until
from examples.stage import scratch_database, working
from worker import BatchScheduler, DelayQueue, Flow, connect
from worker.records import Records

metadata = sa.MetaData()
HELD = sa.text("status = 'held'")
seats = sa.Table(
    "seats",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False, server_default="free"),
    sa.Column("held_by", sa.Text),
    sa.Column("held_until", sa.TIMESTAMP(timezone=True)),
    sa.Index("ix_seats_held", "held_until", "id", postgresql_where=HELD),
)
free, held = seats.c.status == "free", seats.c.status == "held"


def release(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Nobody has paid for these in time. They are locked until this transaction ends."""
    connection.execute(seats.update().where(seats.c.id.in_(ids)).values(status="free"))


def holds(engine: sa.Engine) -> Records:
    queue = DelayQueue(connect(os.environ["REDIS_URL"]), "seat-holds")
    due = seats.c.held_until
    return Records(engine, id=seats.c.id, due=due, pending=held, handle=release, queue=queue)


def flows() -> list[Flow]:
    return [holds(sa.create_engine(os.environ["DATABASE_URL"])).flow()]


def create_app(engine: sa.Engine | None = None, hold_seconds: float = 600) -> Flask:
    app = Flask(__name__)
    engine = engine or sa.create_engine(os.environ["DATABASE_URL"])
    metadata.create_all(engine)  # a service has migrations: `make new` writes the first
    records = holds(engine)
    scheduler = BatchScheduler(records.queue)  # in the background: no request waits for Redis

    def change(seat: str, condition: sa.ColumnElement[bool], **values: object) -> dict[str, object]:
        """One UPDATE decides; 409 if somebody else, or the worker, was first."""
        with engine.begin() as connection:
            changed = seats.update().where(seats.c.id == seat, condition).values(values)
            if connection.execute(changed).rowcount == 0:
                abort(409)
        return {"seat": seat, "status": values["status"]}

    @app.post("/seats/<seat>/hold")
    def hold(seat: str) -> dict[str, object]:
        until = records.after(hold_seconds)
        done = change(seat, free, status="held", held_by=request.args["by"], held_until=until)
        scheduler.schedule(seat, delay_ms=1000 * hold_seconds)  # what is lost, the sweep finds
        return done

    @app.post("/seats/<seat>/pay")
    def pay(seat: str) -> dict[str, object]:
        """Only for whoever holds it: it may have been released meanwhile, and held by somebody else."""
        return change(seat, held & (seats.c.held_by == request.args["by"]), status="sold")

    return app


def play(redis_url: str) -> None:
    """Two seats are held for a second. One is paid for, the other becomes free again."""
    os.environ["REDIS_URL"] = redis_url
    with scratch_database() as engine:
        http = create_app(engine, hold_seconds=1).test_client()
        with engine.begin() as connection:
            connection.execute(seats.insert(), [{"id": "A1"}, {"id": "A2"}])
        for path in ("A1/hold", "A2/hold", "A1/hold", "A2/pay"):
            print(path, http.post(f"/seats/{path}?by=ada").status)
        by_id = sa.select(seats.c.id, seats.c.status).order_by(seats.c.id)
        still_held = sa.select(seats.c.id).where(held)
        with working(redis_url, holds(engine).flow()), engine.connect() as connection:
            wait_until(lambda: not connection.scalars(still_held).all(), "the hold to end")
            print(dict(connection.execute(by_id).all()))
