"""Letters to the future: kept in SQL, sent by SMTP on their day, with or without Redis.

python -m examples future_mail
"""

import os
import smtplib
from collections.abc import Sequence
from email.message import EmailMessage
from urllib.parse import quote

import sqlalchemy as sa

from examples.stage import printing_mail_server, scratch_database, wait_until_empty, working
from worker import DelayQueue, Delays, Flow, connect
from worker.records import Records

letters = sa.Table(
    "letters",
    sa.MetaData(),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("recipient", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("send_at", sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Column("is_sent", sa.Boolean, nullable=False, server_default=sa.false()),
)


def send(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Send letters that are due. They are locked, so no other worker sends them too."""
    with smtplib.SMTP("localhost", int(os.environ["SMTP_PORT"]), timeout=5) as smtp:
        for letter in connection.execute(letters.select().where(letters.c.id.in_(ids))):
            message = EmailMessage()
            message["From"], message["To"] = "past@example.org", letter.recipient
            # Sent again, with the same id, if this process or the database dies before the commit. Quoted: a
            # colon or a space would end it, without an error, and two letters would have the same.
            message["Message-ID"] = f"<{quote(letter.id, safe='')}@example.org>"
            message.set_content(letter.text)
            smtp.send_message(message)
    connection.execute(letters.update().where(letters.c.id.in_(ids)).values(is_sent=True))


def post_office(engine: sa.Engine, redis_url: str) -> Records:
    queue = DelayQueue(connect(redis_url), "letters")
    unsent, due = letters.c.is_sent.is_(False), letters.c.send_at
    return Records(
        engine,
        id=letters.c.id,
        due=due,
        pending=unsent,
        handle=send,
        queue=queue,
        timeout_seconds=60,  # longer than a slow mail server takes, or letters are sent twice
    )


def flow(post: Records) -> Flow:
    """A mail server may be down for days, so a letter is finally retried every hour, for a year."""
    return post.flow(batch_size=1, backoff=Delays(60, 600, 3600), max_failures=8760)


def write(connection: sa.Connection, post: Records, letter: dict[str, str], days: float) -> None:
    """Keep a letter, to be sent after so many days. The sweep gives it to Redis in time."""
    connection.execute(letters.insert().values(**letter, send_at=post.after(86_400 * days)))


def play(redis_url: str) -> None:
    """One letter to be sent in a second, and one in ten years."""
    with scratch_database() as engine, printing_mail_server() as port:
        os.environ["SMTP_PORT"] = str(port)
        post = post_office(engine, redis_url)
        post.index()
        letters.metadata.create_all(engine)  # your migrations do this
        with engine.begin() as connection:
            for name, days in (("soon", 1 / 86_400), ("late", 3650)):
                letter = {"id": name, "recipient": "me@example.org", "text": "Dear me, ..."}
                write(connection, post, letter, days)
        post.queue.schedule("soon", delay_ms=1000)
        with working(redis_url, flow(post)):
            wait_until_empty(DelayQueue(connect(redis_url), "letters"))
