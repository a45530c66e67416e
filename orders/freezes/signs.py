"""What each look of the guard reads, and the signs of API processes, in SQL."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert

from orders.errors import StorageUnavailable
from orders.order.waiting import HOLDS
from orders.sql.expressions import Id, clock, ids, later, now, one_of, text_literal, unindexed
from orders.sql.ids import new_id
from orders.sql.keeping import api_signs, freezes
from orders.sql.statements import made_of
from orders.sql.tables import order_events, orders, unpaid_orders
from orders.sql.transactions import Service

log = structlog.get_logger("orders")

#: How often an API process says that it serves, in one statement.
SIGN_SECONDS = 3.0
#: Signs of processes that ended are kept for so long: one from before says that there is an API.
KEPT_MS = sa.literal_column("-86400000", sa.BigInteger)
#: Who opened the freezes that nobody did.
DOOR, CLOCK, BRAKE = "door", "clock", "brake"
#: Overdue orders that are counted at most.
MOST_COUNTED = 20_000

p = sa.bindparam
_row = insert(api_signs).values(process=p("for_process", type_=Id), at=now())
# Say that a process serves.
SIGN = _row.on_conflict_do_update(index_elements=[api_signs.c.process], set_={"at": now()})
# Forget processes that ended long ago.
FORGET = sa.delete(api_signs).where(api_signs.c.at < later(now(), KEPT_MS))


def _is_open(rule: str) -> sa.ColumnElement[bool]:
    held = (HOLDS, freezes.c.ends_at > now(), freezes.c.opened_by == text_literal(rule))
    return sa.exists(sa.select(freezes.c.id).where(*held))


# The database's clock, the newest sign, and whether the door is held shut already.
LOOK = sa.select(
    clock().label("at"),
    sa.select(sa.func.max(api_signs.c.at)).scalar_subquery().label("signed_at"),
    _is_open(DOOR).label("is_shut"),
)
# Whether a brake still holds: a thawed one does until every order has its time back.
IS_BRAKED = sa.select(
    sa.exists(sa.select(freezes.c.id).where(HOLDS, freezes.c.opened_by == text_literal(BRAKE)))
)
_extended_to = order_events.c.data.op("->>", return_type=sa.String())(text_literal("expires_at"))
# What each order was promised: when it was placed, or by the last event that moved its deadline.
_promised = sa.case(
    (
        unpaid_orders.c.version == sa.literal_column("1"),
        sa.select(later(orders.c.created_at, orders.c.timeout_ms))
        .where(orders.c.id == unpaid_orders.c.order_id)
        .scalar_subquery(),
    ),
    else_=sa.select(sa.cast(_extended_to, unpaid_orders.c.expires_at.type))
    .where(
        order_events.c.order_id == unpaid_orders.c.order_id,
        order_events.c.type == text_literal("order.extended"),
    )
    .order_by(order_events.c.id.desc())
    .limit(sa.literal_column("1"))
    .scalar_subquery(),
)
_is_moved = unpaid_orders.c.expires_at < _promised
# How many of these orders expire before what they were promised.
COUNT_MOVED = sa.select(sa.func.count()).where(
    one_of(unpaid_orders.c.order_id, ids("ids")), unindexed(_is_moved)
)
_overdue = (
    sa.select(_is_moved.label("is_moved"))
    .where(unpaid_orders.c.expires_at <= now())
    .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    .limit(sa.literal_column(str(MOST_COUNTED), sa.Integer))
    .subquery()
)
# How many orders are overdue, and how many of them before what they were promised.
COUNT_OVERDUE = sa.select(
    sa.func.count().label("due"), sa.func.count().filter(_overdue.c.is_moved).label("moved")
).select_from(_overdue)


class Looked(NamedTuple):
    """What a look found."""

    at: datetime
    #: When an API process signed last; None if none ever did.
    signed_at: datetime | None
    #: Whether a freeze is open because none does.
    is_shut: bool


class DueCount(NamedTuple):
    """How many orders are overdue, and how many of them before what they were promised."""

    due: int
    moved: int


LOOKED, OVERDUE = made_of(Looked), made_of(DueCount)


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

    def is_braked(self) -> bool:
        """Whether the brake holds orders."""
        return bool(self._value(IS_BRAKED))

    def count_moved(self, order_ids: Sequence[str]) -> int:
        """How many of these orders expire before what they were promised."""
        return int(self._value(COUNT_MOVED, ids=order_ids))

    def count_overdue(self) -> DueCount:
        [due] = self._all(OVERDUE, COUNT_OVERDUE)
        return due


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
