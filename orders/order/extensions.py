"""Many deadlines moved by the service itself: after a freeze.

An operation moves some of them, so it can be interrupted between any two.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.order.domain import EventType
from orders.order.operations import REMINDERS, add_events, event_of
from orders.order.payments import Payments
from orders.order.ports import Observer, TaskScheduler, nobody
from orders.order.waiting import HOLDS, in_scope, moved_with
from orders.sql.expressions import (
    Id,
    clock,
    later,
    ms_until,
    now,
    one_of,
    rfc3339_text,
    text_literal,
    unindexed,
    uuid7,
)
from orders.sql.keeping import freezes
from orders.sql.steps import Operation, Step
from orders.sql.tables import unpaid_orders

p = sa.bindparam
#: How many deadlines one statement moves.
BATCH_SIZE = 500
#: What follows the time in the least UUIDv7 of a millisecond.
LEAST = text_literal("0" * 20)


class Batch(NamedTuple):
    """What one statement did."""

    #: By order, in how many milliseconds it expires.
    extended: dict[str, float]
    #: Whether there was nothing left to do, not even an order that somebody else has locked.
    done: bool


def _one(row: sa.FromClause, name: str) -> sa.ColumnElement[Any]:
    """A column of a single row, as a value: a planner then sees that an index applies."""
    return sa.select(row.c[name]).scalar_subquery()


def _extend_some(
    step: Step,
    wanted: sa.ColumnElement[bool],
    deadline: sa.ColumnElement[Any],
    facts: dict[str, sa.ColumnElement[Any]],
) -> tuple[sa.FromClause, sa.FromClause, sa.FromClause]:
    """The steps that move deadlines which come before another: those that come first.

    Orders that are locked are skipped. Returns what was found, what was extended of it, and the
    webhook deliveries.
    """
    sooner = unpaid_orders.c.expires_at < deadline
    found = step(
        "found",
        sa.select(unpaid_orders.c.order_id)
        .where(sooner, wanted)
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
    extended = step(
        "extended",
        sa.update(unpaid_orders)
        .where(one_of(unpaid_orders.c.order_id, sa.select(locked.c.order_id)))
        .values(
            expires_at=deadline,
            version=unpaid_orders.c.version + 1,
            under_way_until=moved_with(unpaid_orders, deadline),
        )
        .returning(unpaid_orders, clock().label("at")),
    )
    moved = {
        "previous_expires_at": rfc3339_text(locked.c.expires_at),
        "expires_at": rfc3339_text(extended.c.expires_at),
        **facts,
    }
    same = locked.c.order_id == extended.c.order_id
    event = event_of(extended, EventType.EXTENDED, extended.c.at, moved, same)
    return found, extended, add_events(step, event, reminders=REMINDERS)


def _rows(kind: str, row_id: sa.ColumnElement[Any], ms: Any = None) -> sa.Select[Any]:
    return sa.select(
        text_literal(kind).label("kind"),
        row_id.label("id"),
        (sa.cast(sa.null(), sa.BigInteger) if ms is None else ms).label("ms"),
    )


def _outcome(
    extended: sa.FromClause, deliveries: sa.FromClause, rest: sa.Select[Any]
) -> sa.Select[Any]:
    until = ms_until(extended.c.expires_at, extended.c.at)
    parts = (
        _rows("extended", extended.c.order_id, until),
        _rows("delivery", deliveries.c.id),
        rest,
    )
    return sa.select(sa.union_all(*parts).subquery("outcome"))


@Operation
def give_back(step: Step) -> sa.Select[Any]:
    """Give some orders the time back that a freeze took: all that it holds and that were placed
    before its end expire ``give_back_ms`` after that, or later.

    When there is no such order any more, the freeze no longer holds. Returns rows of three kinds:
    ``extended``, an order and the milliseconds until it expires; ``delivery``, the id of a webhook
    delivery; and ``freeze``, with 1 if it no longer holds. There is no such row if the freeze still
    lasts, if it has given back before, and if another statement is at it.
    """
    freeze = step(
        "freeze",
        sa.select(freezes, later(freezes.c.ends_at, freezes.c.give_back_ms).label("deadline"))
        .where(freezes.c.id == p("for_id", type_=Id), unindexed(HOLDS), freezes.c.ends_at <= now())
        .with_for_update(skip_locked=True, key_share=True),
    )
    millisecond = sa.literal_column("1", sa.BigInteger)
    placed_later = uuid7(later(_one(freeze, "ends_at"), millisecond), LEAST)
    scope = (_one(freeze, name) for name in ("client_id", "sku", "provider"))
    found, extended, deliveries = _extend_some(
        step,
        in_scope(unpaid_orders, *scope) & (unpaid_orders.c.order_id < placed_later),
        _one(freeze, "deadline"),
        {
            "reason": text_literal("freeze"),
            "freeze_id": sa.cast(_one(freeze, "id"), sa.String),
        },
    )
    count = sa.select(sa.func.count()).select_from(extended).scalar_subquery()
    is_over = ~sa.exists(sa.select(found.c.order_id))
    counted = step(
        "counted",
        sa.update(freezes)
        .where(freezes.c.id == _one(freeze, "id"))
        .values(
            given_back=freezes.c.given_back + count,
            given_back_at=sa.case((is_over, clock())),
        )
        .returning(freezes.c.id, freezes.c.given_back_at),
    )
    over = sa.cast(counted.c.given_back_at.is_not(None), sa.Integer)
    return _outcome(extended, deliveries, _rows("freeze", counted.c.id, over))


class Extensions(Payments):
    """Raises StorageUnavailable from every method while the database does not answer."""

    def __init__(
        self,
        engine: sa.Engine,
        scheduler: TaskScheduler,
        *,
        webhooks: TaskScheduler | None = None,
        reminders: bool = False,
        observe: Observer = nobody,
    ) -> None:
        super().__init__(engine, webhooks, observe)
        self._scheduler = scheduler
        self._reminders = reminders

    def give_back(self, connection: sa.Connection, freeze_id: str) -> Batch | None:
        """Give some orders their time back, in one statement, on a connection that commits it by
        itself; None if the freeze is not ready for it, as `give_back` says.

        Repeat it until it is done. Interrupting it loses nothing.
        """
        values = {"for_id": freeze_id, "most": BATCH_SIZE, "reminders": self._reminders}
        rows = give_back(connection, **values)
        batch = self._batch(rows)
        self._observe(EventType.EXTENDED, "freeze", len(batch.extended))
        return batch if any(row.kind == "freeze" for row in rows) else None

    def _batch(self, rows: Sequence[sa.Row[Any]]) -> Batch:
        """What was done, once the checks and the webhooks are scheduled."""
        extended = {row.id: row.ms for row in rows if row.kind == "extended"}
        for order_id, ms in extended.items():
            self._scheduler.schedule(order_id, delay_ms=ms)
        self._send(row.id for row in rows if row.kind == "delivery")
        return Batch(extended, any(row.kind == "freeze" and row.ms for row in rows))
