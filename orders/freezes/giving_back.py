"""Giving back the time that a freeze took, a batch of orders to a statement."""

from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.order.domain import EventType, Timeouts
from orders.order.operations import move, rows_of
from orders.order.ports import CheckScheduler, Observer, nobody
from orders.order.sparing import IN_FORCE, is_of
from orders.sql.expressions import (
    Id,
    clock,
    first_uuid7,
    later,
    ms_until,
    now,
    one_of,
    text_literal,
    unindexed,
)
from orders.sql.freeze_tables import freezes
from orders.sql.steps import Operation, Step
from orders.sql.tables import unpaid_orders

p = sa.bindparam
#: How many deadlines one statement moves.
BATCH_SIZE = 500
MILLISECOND = sa.literal_column("1", sa.BigInteger)


class GivenBack(NamedTuple):
    """What one statement did."""

    #: By order, in how many milliseconds it expires.
    extended: dict[str, float]
    #: Whether there was nothing left to do, not even an order that somebody else has locked.
    done: bool


def _one(row: sa.FromClause, name: str) -> sa.ColumnElement[Any]:
    """A column of a single row, as a value: a planner then sees that an index applies."""
    return sa.select(row.c[name]).scalar_subquery()


@Operation
def give_back(step: Step) -> sa.Select[Any]:
    """Give some orders the time back that a freeze took: all that it stops and that were placed
    before its end expire ``give_back_ms`` after that, or later.

    When there is no such order any more, the freeze is no longer in force. Returns rows of three kinds:
    ``extended``, an order and the milliseconds until it expires; ``delivery``, the id of a webhook
    delivery; and ``freeze``, with 1 if it is no longer in force. There is no such row if the freeze still
    lasts, if it has given back before, and if another statement is at it.
    """
    freeze = step(
        "freeze",
        sa.select(freezes, later(freezes.c.ends_at, freezes.c.give_back_ms).label("deadline"))
        .where(
            freezes.c.id == p("for_id", type_=Id), unindexed(IN_FORCE), freezes.c.ends_at <= now()
        )
        .with_for_update(skip_locked=True, key_share=True),
    )
    placed_later = first_uuid7(later(_one(freeze, "ends_at"), MILLISECOND))
    deadline = _one(freeze, "deadline")
    sooner = unpaid_orders.c.expires_at < deadline
    found = step(
        "found",
        sa.select(unpaid_orders.c.order_id)
        .where(
            sooner,
            is_of(unpaid_orders, _one(freeze, "client_id")),
            unpaid_orders.c.order_id < placed_later,
        )
        .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
        .limit(p("most")),
    )
    locked = step(
        "locked",
        sa.select(unpaid_orders.c.order_id, unpaid_orders.c.expires_at)
        .where(one_of(unpaid_orders.c.order_id, sa.select(found.c.order_id)), unindexed(sooner))
        .order_by(unpaid_orders.c.order_id)
        .with_for_update(skip_locked=True),
    )
    facts = {
        "reason": text_literal("freeze"),
        "freeze_id": sa.cast(_one(freeze, "id"), sa.String),
        "note": _one(freeze, "reason"),
        "by": _one(freeze, "opened_by"),
    }
    extended, deliveries = move(step, locked, deadline, facts)
    extended_count = sa.select(sa.func.count()).select_from(extended)
    is_over = ~sa.exists(sa.select(found.c.order_id))
    counted = step(
        "counted",
        sa.update(freezes)
        .where(freezes.c.id == _one(freeze, "id"))
        .values(
            given_back=freezes.c.given_back + extended_count.scalar_subquery(),
            given_back_at=sa.case((is_over, clock())),
        )
        .returning(freezes.c.id, freezes.c.given_back_at),
    )
    over = sa.cast(counted.c.given_back_at.is_not(None), sa.Integer)
    parts = (
        rows_of("extended", extended.c.order_id, ms_until(extended.c.expires_at, extended.c.at)),
        rows_of("delivery", deliveries.c.id),
        rows_of("freeze", counted.c.id, over),
    )
    return sa.select(sa.union_all(*parts).subquery("outcome"))


class GivingBack:
    def __init__(
        self,
        scheduler: CheckScheduler,
        webhooks: CheckScheduler,
        timeouts: Timeouts,
        *,
        reminders: bool = False,
        observe: Observer = nobody,
    ) -> None:
        """``webhooks`` schedules deliveries; ``reminders`` says whether deadlines have reminders."""
        self._scheduler = scheduler
        self._webhooks = webhooks
        self._kept_ms = timeouts.kept_ms
        self._reminders = reminders
        self._observe = observe

    def batch(self, connection: sa.Connection, freeze_id: str) -> GivenBack | None:
        """Give some orders their time back, in one statement, on a connection that commits it by
        itself; None if the freeze is not ready for it, as `give_back` says.

        Repeat it until it is done. Interrupting it loses nothing.
        """
        rows = give_back(
            connection,
            for_id=freeze_id,
            for_most_ms=self._kept_ms,
            most=BATCH_SIZE,
            reminders=self._reminders,
        )
        extended = {row.id: row.ms for row in rows if row.kind == "extended"}
        for order_id, ms in extended.items():
            self._scheduler.schedule(order_id, delay_ms=ms)
        for row in rows:
            if row.kind == "delivery":
                self._webhooks.schedule(row.id, delay_ms=0)
        self._observe(EventType.EXTENDED, "", len(extended))
        is_done = [bool(row.ms) for row in rows if row.kind == "freeze"]
        return GivenBack(extended, is_done[0]) if is_done else None
