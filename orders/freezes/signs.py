"""What each look of the guard reads, and the signs of API processes, in SQL."""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.errors import StorageUnavailable
from orders.log import log
from orders.order.sparing import IN_FORCE
from orders.sql.expressions import Id, clock, later, now, text_literal
from orders.sql.freeze_tables import api_signs, freezes
from orders.sql.ids import new_id
from orders.sql.statements import made_of
from orders.sql.transactions import Service

#: How often an API process says that it serves, in one statement.
SIGN_SECONDS = 1.0
#: Signs of processes that ended are kept for so long: one from before says that there is an API.
KEPT_MS = sa.literal_column("-86400000", sa.BigInteger)
#: Who opened the freezes that nobody did.
DOOR, CLOCK = "door", "clock"

p = sa.bindparam
_row = insert(api_signs).values(process=p("for_process", type_=Id), at=now())
# Say that a process serves.
SIGN = _row.on_conflict_do_update(index_elements=[api_signs.c.process], set_={"at": now()})
# Forget processes that ended long ago.
FORGET = sa.delete(api_signs).where(api_signs.c.at < later(now(), KEPT_MS))
_shut = (IN_FORCE, freezes.c.ends_at > now(), freezes.c.opened_by == text_literal(DOOR))
# The database's clock, the newest sign, and whether the door is shut already.
LOOK = sa.select(
    clock().label("at"),
    sa.select(sa.func.max(api_signs.c.at)).scalar_subquery().label("signed_at"),
    sa.exists(sa.select(freezes.c.id).where(*_shut)).label("is_shut"),
)


class Looked(NamedTuple):
    """What a look found."""

    at: datetime
    #: When an API process signed last; None if none ever did.
    signed_at: datetime | None
    #: Whether a freeze is open because none does.
    is_shut: bool


LOOKED = made_of(Looked)


class Signs(Service):
    def sign(self, process: str) -> None:
        """Say that an API process serves."""
        with self._autocommit() as sql:
            sql.run(SIGN, for_process=process)

    def forget(self) -> None:
        """Delete the signs of processes that ended more than a day ago."""
        with self._autocommit() as sql:
            sql.run(FORGET)

    def look(self) -> Looked:
        [looked] = self._all(LOOKED, LOOK)
        return looked


def start_signing(signs: Signs, is_ready: Callable[[], bool]) -> Callable[[], None]:
    """Sign until this process ends, from a thread, while it is ready. Not at once: it may not serve yet.

    The first sign has those of processes that ended long ago forgotten. Returns what stops it.
    """
    process, stop = new_id(), threading.Event()

    def run() -> None:
        fails, has_signed = False, False
        while not stop.wait(SIGN_SECONDS):
            try:
                if is_ready():
                    signs.sign(process)
                    if not has_signed:
                        signs.forget()
                    has_signed = True
                fails = False
            except StorageUnavailable:  # which it says elsewhere
                fails = True
            except Exception:
                if not fails:
                    log.exception("cannot sign")
                fails = True

    def end() -> None:
        stop.set()
        thread.join()

    thread = threading.Thread(target=run, name="signs", daemon=True)
    thread.start()
    return end
