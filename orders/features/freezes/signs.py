"""The signs of API processes, and what each look of the guard reads."""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from orders.db.ids import new_id
from orders.db.statements import Service, made_of
from orders.errors import StorageUnavailable
from orders.features.freezes.service import SQL
from orders.log import Reminder, log

#: How often an API process says that it serves, in one statement.
SIGN_SECONDS = 1.0
#: Who opened the freezes that nobody did.
DOOR, CLOCK = "door", "clock"


class Looked(NamedTuple):
    """What a look found."""

    at: datetime
    #: When an API process signed last; None if none ever did.
    signed_at: datetime | None
    #: Whether a freeze is open because none does, and because the clock jumped.
    is_shut: bool
    is_doubted: bool
    #: A text that changes with every freeze.
    latest: str | None


LOOKED = made_of(Looked)


class Signs(Service):
    def sign(self, process: str) -> None:
        """Say that an API process serves."""
        with self._autocommit() as sql:
            SQL.sign(sql, process=process)

    def look(self) -> Looked:
        [looked] = self._all(LOOKED, SQL.look)
        return looked


def start_signing(signs: Signs, is_ready: Callable[[], bool]) -> Callable[[], None]:
    """Sign from a thread while this process is ready. Not at once: it may not serve yet. Returns what stops it."""
    process, stop, failure = new_id(), threading.Event(), Reminder()

    def run() -> None:
        while not stop.wait(SIGN_SECONDS):
            try:
                with suppress(StorageUnavailable):  # which it says elsewhere
                    if is_ready():
                        signs.sign(process)
            except Exception:
                if failure.is_due():
                    log.exception("cannot sign")

    def end() -> None:
        stop.set()
        thread.join()

    thread = threading.Thread(target=run, name="signs", daemon=True)
    thread.start()
    return end
