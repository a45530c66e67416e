"""Seats that are held for a while, a reminder before the end, extensions, and mails that are sent once.

python -m examples hold_with_mails

Two tables, each the truth of a flow: holds expire, and future_mail sends letters. A letter is written in the transaction
that is the reason for it, so it is sent if and only if that commits. Its Message-ID is the id of its row: if a worker
or the database dies between sending a letter and its commit, it is sent again with the same id, and the recipient's side
can tell.
"""

import os
from collections.abc import Sequence

import sqlalchemy as sa

from examples.future_mail import flow, letters, post_office
from examples.stage import printing_mail_server, scratch_database, wait_until_empty, working
from worker import DelayQueue, connect
from worker.records import Records

holds = sa.Table(
    "holds",
    letters.metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False, server_default="held"),
    sa.Column("email", sa.Text, nullable=False),
    sa.Column("ends_at", sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default="0"),
)
held, due = holds.c.status == "held", holds.c.ends_at


class Seats:
    """Call its methods within a transaction."""

    def __init__(self, engine: sa.Engine, redis_url: str, remind_seconds: float = 300) -> None:
        self.remind_seconds = remind_seconds
        self.letters = post_office(engine, redis_url)
        queue, end = DelayQueue(connect(redis_url), "holds"), self.end
        self.holds = Records(engine, id=holds.c.id, due=due, pending=held, handle=end, queue=queue)

    def end(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        connection.execute(holds.update().where(holds.c.id.in_(ids)).values(status="expired"))
        self.forget_reminders(connection, ids)
        self.write(connection, "expired", ids, after=0)

    def hold(self, connection: sa.Connection, seat: str, email: str, seconds: float) -> None:
        """Hold a seat. IntegrityError: somebody does."""
        facts = {"email": email, "ends_at": self.holds.after(seconds), "status": "held"}
        free = holds.update().where(holds.c.id == seat, holds.c.status == "expired")
        if not connection.execute(free.values(version=holds.c.version + 1, **facts)).rowcount:
            connection.execute(holds.insert().values(id=seat, **facts))
        self.write(connection, "reminder", [seat], after=-self.remind_seconds)

    def extend(self, connection: sa.Connection, seat: str, seconds: float) -> None:
        ends_at = self.holds.after(seconds, since=due)
        self.change(connection, seat, ends_at=ends_at, version=holds.c.version + 1)
        self.write(connection, "reminder", [seat], after=-self.remind_seconds)

    def change(self, connection: sa.Connection, seat: str, **values: object) -> None:
        """Such as status="paid". One UPDATE decides: NoResultFound if the hold has ended."""
        changed = holds.update().where(holds.c.id == seat, held).values(values)
        connection.execute(changed.returning(holds.c.id)).one()
        self.forget_reminders(connection, [seat])

    def forget_reminders(self, connection: sa.Connection, seats: Sequence[str]) -> None:
        """Those that are being sent are locked, and left: no customer waits for a mail server."""
        of = [letters.c.id.startswith(f"{seat}-reminder-", autoescape=True) for seat in seats]
        unsent = sa.select(letters.c.id).where(sa.or_(*of), letters.c.is_sent.is_(False))
        free = unsent.with_for_update(skip_locked=True)
        connection.execute(letters.delete().where(letters.c.id.in_(free)))

    def write(self, connection: sa.Connection, kind: str, ids: Sequence[str], after: float) -> None:
        """Write letters to those who hold these seats, to be sent so many seconds after the end."""
        letter = holds.c.id + f"-{kind}-" + sa.cast(holds.c.version, sa.Text)
        send_at = self.letters.after(after, since=due)
        rows = sa.select(letter, holds.c.email, sa.literal(kind), send_at).where(
            holds.c.id.in_(ids)
        )
        columns = ["id", "recipient", "text", "send_at"]
        connection.execute(letters.insert().from_select(columns, rows))
        self.letters.schedule(connection, *connection.scalars(rows))  # after the commit
        self.holds.schedule(connection, *ids)  # those that are still held


def play(redis_url: str) -> None:
    """A seat is held for a second, and for two more; a reminder comes a second before the end."""
    with scratch_database() as engine, printing_mail_server() as port:
        os.environ["SMTP_PORT"] = str(port)
        seats = Seats(engine, redis_url, remind_seconds=1)
        letters.metadata.create_all(engine)  # your migrations do this, and make the index of each
        with engine.begin() as connection:
            seats.hold(connection, "A1", "ada@example.org", seconds=1)
            seats.extend(connection, "A1", seconds=2)
        with working(redis_url, seats.holds.flow(), flow(seats.letters)):
            wait_until_empty(DelayQueue(connect(redis_url), "holds"))
            wait_until_empty(DelayQueue(connect(redis_url), "letters"))
