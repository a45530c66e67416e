"""The signs of API processes."""

import threading
from collections.abc import Callable
from contextlib import suppress

import sqlalchemy as sa

from orders.db.database import autocommit
from orders.db.ids import new_id
from orders.errors import StorageUnavailable
from orders.features.freezes.service import SQL
from orders.log import Reminder, log

#: How often an API process says that it serves, in one statement.
SIGN_SECONDS = 1.0
#: Who opened the freezes that nobody did.
DOOR, CLOCK = "door", "clock"


def start_signing(engine: sa.Engine, is_ready: Callable[[], bool]) -> Callable[[], None]:
    """Sign from a thread while this process is ready. Not at once: it may not serve yet. Returns what stops it."""
    process, stop, failure = new_id(), threading.Event(), Reminder()

    def run() -> None:
        while not stop.wait(SIGN_SECONDS):
            try:
                with suppress(StorageUnavailable):  # which it says elsewhere
                    if is_ready():
                        with autocommit(engine) as sql:
                            SQL.sign(sql, process=process)
            except Exception:
                if failure.is_due():
                    log.exception("cannot sign")

    def end() -> None:
        stop.set()
        thread.join()

    thread = threading.Thread(target=run, name="signs", daemon=True)
    thread.start()
    return end
