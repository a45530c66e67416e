"""The SQL statements on payment attempts, each with a name and a sentence.

An attempt is locked before its order. What locks orders first passes over attempts that are locked.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.attempts.domain import Attempt, AttemptOutcome, DueAttempt
from orders.order.waiting import frozen
from orders.sql.expressions import (
    Id,
    Instant,
    clock,
    ids,
    later,
    ms_until,
    now,
    one_of,
    text_literal,
    unindexed,
)
from orders.sql.ids import new_id
from orders.sql.keeping import payment_attempts
from orders.sql.statements import FIRST, Position, Statements, after_last
from orders.sql.steps import Operation, Step
from orders.sql.tables import (
    TERMINAL,
    api_clients,
    order_events,
    orders,
    payments,
    provider_endpoints,
    unpaid_orders,
)

p = sa.bindparam
attempts = payment_attempts.c
unpaid = unpaid_orders.c
_order, _client = p("for_order", type_=Id), p("for_client", type_=Id)
_provider = p("for_provider", type_=attempts.provider.type)
_reference = p("for_reference", type_=attempts.reference.type)
_named = (
    attempts.client_id == _client,
    attempts.provider == _provider,
    attempts.reference == _reference,
)
_registered = sa.select(provider_endpoints.c.id).where(
    provider_endpoints.c.client_id == _client, provider_endpoints.c.revoked_at.is_(None)
)
_endpoint = _registered.where(provider_endpoints.c.provider == _provider)
#: Whether the client has registered this provider, or none at all.
_IS_KNOWN = sa.exists(_endpoint) | ~sa.exists(_registered)

#: How much of an order's bound is left for asking its provider: a tenth of it.
_TO_ASK_MS = p("for_most_ms", type_=sa.BigInteger) // sa.literal_column("10", sa.BigInteger)
#: So many attempts of an order may be unsettled: settling one looks at the others.
MOST_OPEN = 50
_open_ones = (
    sa.select(attempts.id)
    .where(attempts.order_id == _order, attempts.settled_at.is_(None))
    .limit(sa.literal_column(str(MOST_OPEN), sa.Integer))
    .subquery()
)
_IS_FULL = sa.select(sa.func.count() >= sa.literal_column(str(MOST_OPEN), sa.Integer)).select_from(
    _open_ones
)
#: The columns of an attempt that is shown.
SHOWN = tuple(each.name for each in attempts if each.name != "asks")


@Operation
def open_(step: Step) -> sa.Select[Any]:
    """Insert an attempt of a client's own unpaid order, and have it keep the order.

    It ends in time for its provider to be asked, if that can be, before the order's bound. What is
    reported of an order that has ended only ends at once, so that the provider is asked to close it.
    Returns nothing if there is no such order; otherwise the attempt, or nulls, whether its provider is
    known, whether the order is unpaid, how it ended, and whether it has too many attempts.
    """
    own = step(
        "own",
        sa.select(unpaid.order_id, later(unpaid.expires_at, "for_most_ms").label("bound"))
        .where(unpaid.order_id == _order, unpaid.client_id == _client)
        .with_for_update(),
    )
    ending = sa.select(order_events.c.type).where(order_events.c.order_id == _order, TERMINAL)
    asked = _endpoint.where(provider_endpoints.c.close_url.is_not(None))
    order = step(
        "order_",
        sa.select(
            orders.c.id,
            own.c.bound,
            clock().label("moment"),
            sa.exists(asked).label("asks"),
            _IS_KNOWN.label("is_known"),
            _IS_FULL.scalar_subquery().label("is_full"),
            ending.scalar_subquery().label("ending"),
        )
        .select_from(orders.join(own, sa.true(), isouter=True))
        .where(orders.c.id == _order, unindexed(orders.c.client_id == _client)),
    )
    last = sa.case((order.c.asks, later(order.c.bound, -_TO_ASK_MS)), else_=order.c.bound)
    end = sa.func.least(later(order.c.moment, "for_ms"), sa.func.greatest(last, order.c.moment))
    row = {
        "id": p("attempt_id", type_=Id),
        "order_id": order.c.id,
        "client_id": _client,
        "provider": _provider,
        "reference": _reference,
        "opened_at": order.c.moment,
        "ends_at": sa.case((order.c.bound.is_not(None), end), else_=order.c.moment),
        "asks": order.c.asks,
    }
    wanted = (
        ~order.c.is_full
        & order.c.is_known
        & sa.func.coalesce(
            order.c.bound > order.c.moment, order.c.asks & order.c.ending.is_not(None)
        )
    )
    opened = step(
        "opened",
        insert(payment_attempts)
        .from_select([*row], sa.select(*row.values()).where(wanted))
        .on_conflict_do_nothing()
        .returning(payment_attempts),
    )
    until = sa.select(sa.case((opened.c.asks, order.c.bound), else_=opened.c.ends_at)).select_from(
        opened.join(order, sa.true())
    )
    step(
        "kept",
        sa.update(unpaid_orders)
        .where(one_of(unpaid.order_id, sa.select(opened.c.order_id)))
        # Of the row as it is once it is locked; nulls do not count.
        .values(
            under_way_until=sa.func.greatest(
                unpaid.under_way_until, until.scalar_subquery(), type_=Instant
            )
        ),
    )
    return sa.select(
        *(opened.c[name] for name in SHOWN),
        order.c.is_known,
        order.c.bound.is_not(None).label("is_unpaid"),
        order.c.ending,
        order.c.is_full,
        ms_until(opened.c.ends_at, order.c.moment).label("ms"),
    ).select_from(order.join(opened, sa.true(), isouter=True))


_shown = sa.select(*attempts[SHOWN])
# The attempt that a client's provider knows by this reference.
GET_NAMED = _shown.where(*_named)
# The same, locked, if it is not settled.
LOCK_NAMED = (
    sa.select(attempts.id)
    .where(*_named, unindexed(attempts.settled_at.is_(None)))
    .with_for_update()
)
# Insert an attempt that has failed before it was known, so that it is not opened later.
ADD_FAILED = (
    insert(payment_attempts)
    .from_select(
        [*SHOWN, "asks"],
        sa.select(
            *(p("attempt_id", type_=Id), orders.c.id, orders.c.client_id, _provider, _reference),
            *(now(), now(), now(), text_literal(AttemptOutcome.FAILED), sa.false()),
        ).where(orders.c.id == _order, unindexed(orders.c.client_id == _client)),
    )
    .on_conflict_do_nothing()
)
HAS_ORDER = sa.select(
    sa.exists(sa.select(orders.c.id).where(orders.c.id == _order, orders.c.client_id == _client))
)
_oldest_first = (attempts.opened_at, attempts.id)
# An order's attempts, oldest first, from a page's end on.
LIST_OF_ORDER = (
    _shown.where(attempts.order_id == _order, after_last(*_oldest_first))
    .order_by(*_oldest_first)
    .limit(p("page_size"))
)

_among = one_of(attempts.id, ids("ids"))
_is_reported = sa.exists(
    sa.select(payments.c.id)
    .where(
        payments.c.client_id == attempts.client_id,
        payments.c.provider == attempts.provider,
        payments.c.reference == attempts.reference,
    )
    .correlate(payment_attempts)
)


def _of_order(value: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    """Of the attempt's order, if it is unpaid."""
    row = sa.select(value).select_from(unpaid_orders).where(unpaid.order_id == attempts.order_id)
    return row.correlate(payment_attempts).scalar_subquery()


_bound = sa.func.coalesce(_of_order(unpaid.under_way_until), later(attempts.ends_at, "for_most_ms"))
# Attempts that are not settled. Of an order that has ended, a provider is asked for as long.
GET_OPEN = sa.select(
    *attempts["id", "order_id", "client_id"],
    sa.select(api_clients.c.name)
    .where(api_clients.c.id == attempts.client_id)
    .correlate(payment_attempts)
    .scalar_subquery()
    .label("client"),
    *attempts["provider", "reference"],
    ms_until(attempts.ends_at).label("ends_in_ms"),
    (attempts.asks & ~_is_reported).label("asks"),
    ((_bound <= now()) & ~sa.func.coalesce(_of_order(frozen(unpaid_orders)), sa.false())).label(
        "is_over"
    ),
    sa.exists(sa.select(unpaid.order_id).where(unpaid.order_id == attempts.order_id)).label(
        "is_unpaid"
    ),
).where(_among, unindexed(attempts.settled_at.is_(None)))
# End attempts of an order that has ended. It had not when they were opened, in the same instant, so
# the statement that ended it did not see them.
END = (
    sa.update(payment_attempts)
    .where(_among, unindexed(attempts.settled_at.is_(None)), attempts.ends_at > now())
    .values(ends_at=now())
)
# Lock the orders that some attempts are about, in the order of all locks.
LOCK_ORDERS = (
    sa.select(unpaid.order_id)
    .where(one_of(unpaid.order_id, sa.select(attempts.order_id).where(_among)))
    .order_by(unpaid.order_id)
    .with_for_update()
)


@Operation
def settle(step: Step) -> sa.Select[Any]:
    """Settle attempts that are locked, as are their orders, which the others of them still keep.

    The outcome is succeeded if the money was reported, else ``for_outcome``, if it is given. Returns the
    unpaid orders.
    """
    closed = one_of(attempts.id, ids("closed"))
    outcome = sa.case(
        (_is_reported, text_literal(AttemptOutcome.SUCCEEDED)),
        (closed, text_literal(AttemptOutcome.CLOSED)),
        (attempts.asks, text_literal(AttemptOutcome.UNKNOWN)),
        else_=text_literal(AttemptOutcome.EXPIRED),
    )
    settled = step(
        "settled",
        sa.update(payment_attempts)
        .where(_among, unindexed(attempts.settled_at.is_(None)))
        .values(
            settled_at=clock(),
            outcome=sa.func.coalesce(p("for_outcome", type_=attempts.outcome.type), outcome),
        )
        .returning(attempts.order_id),
    )
    other = payment_attempts.alias("other")
    until = sa.select(
        sa.func.max(
            sa.case(
                (other.c.asks, unpaid.under_way_until),
                else_=sa.func.least(other.c.ends_at, unpaid.under_way_until),
            )
        )
    ).where(
        other.c.order_id == unpaid.order_id,
        other.c.settled_at.is_(None),
        ~one_of(other.c.id, ids("ids")),
    )
    freed = step(
        "freed",
        sa.update(unpaid_orders)
        .where(one_of(unpaid.order_id, sa.select(settled.c.order_id)))
        .values(under_way_until=until.correlate(unpaid_orders).scalar_subquery())
        .returning(unpaid.order_id),
    )
    return sa.select(freed)


class Opened(NamedTuple):
    """What became of an attempt to open one."""

    attempt: Attempt | None
    #: Milliseconds until it ends.
    ends_in_ms: float
    is_known: bool
    is_unpaid: bool
    #: The type of the order's terminal event.
    ending: str | None
    #: Whether as many attempts are open as may be.
    is_full: bool


class AttemptRepository(Statements):
    """The statements, on one connection."""

    def open(
        self, client_id: str, order_id: str, *, provider: str, reference: str, ms: int, most_ms: int
    ) -> Opened | None:
        """Insert an attempt; None if there is no such order."""
        values = {"for_ms": ms, "for_most_ms": most_ms, "attempt_id": new_id()}
        named = _names(client_id, provider, reference)
        rows = open_(self._connection, for_order=order_id, **named, **values)
        if not rows:
            return None
        row = rows[0]
        attempt = None if row.id is None else _attempt(row)
        return Opened(attempt, row.ms, row.is_known, row.is_unpaid, row.ending, row.is_full)

    def named(self, client_id: str, provider: str, reference: str) -> Attempt | None:
        """The attempt that a client's provider knows by this reference."""
        row = self._run(GET_NAMED, **_names(client_id, provider, reference)).one_or_none()
        return None if row is None else _attempt(row)

    def lock_named(self, client_id: str, provider: str, reference: str) -> str | None:
        """Lock the same, if it is not settled, and return its id."""
        values = _names(client_id, provider, reference)
        return self._run(LOCK_NAMED, **values).scalar_one_or_none()

    def add_failed(self, client_id: str, order_id: str, provider: str, reference: str) -> bool:
        """Insert an attempt that has failed, unless it is known; whether there is such an order."""
        values = {"for_order": order_id, **_names(client_id, provider, reference)}
        self._run(ADD_FAILED, attempt_id=new_id(), **values)
        found = self._run(HAS_ORDER, for_order=order_id, for_client=client_id)
        return bool(found.scalar_one())

    def of_order(self, order_id: str, *, page_size: int, after: Position | None) -> list[Attempt]:
        """An order's attempts, oldest first."""
        at, last_id = after or FIRST
        values = {"for_order": order_id, "page_size": page_size}
        rows = self._run(LIST_OF_ORDER, **values, last_at=at, last_id=last_id)
        return [_attempt(row) for row in rows]

    def open_ones(self, attempt_ids: Sequence[str], most_ms: int) -> list[DueAttempt]:
        """Those of these attempts that are not settled."""
        rows = self._run(GET_OPEN, ids=attempt_ids, for_most_ms=most_ms)
        return [DueAttempt._make(row) for row in rows]

    def end(self, attempt_id: str) -> None:
        """End an attempt of an order that has ended."""
        self._run(END, ids=[attempt_id])

    def settle(
        self,
        attempt_ids: Sequence[str],
        closed: Sequence[str] = (),
        outcome: AttemptOutcome | None = None,
    ) -> list[str]:
        """Settle attempts that this transaction has locked; return those of their orders that are unpaid.

        In two statements: what another transaction did to an order's attempts while this one waited for
        the order is seen by the second.
        """
        self._run(LOCK_ORDERS, ids=attempt_ids)
        values = {"ids": attempt_ids, "closed": closed, "for_outcome": outcome}
        return [row.order_id for row in settle(self._connection, **values)]


def _names(client_id: str, provider: str, reference: str) -> dict[str, str]:
    return {"for_client": client_id, "for_provider": provider, "for_reference": reference}


def _attempt(row: sa.Row[Any]) -> Attempt:
    values: dict[str, datetime | str | None] = {name: getattr(row, name) for name in SHOWN}
    outcome = None if row.outcome is None else AttemptOutcome(row.outcome)
    return Attempt(**{**values, "outcome": outcome})  # type: ignore[arg-type]
