"""The SQL statements on payment attempts, each with a name and a sentence.

An attempt is locked before its order. What locks orders first passes over attempts that are locked.
"""

from typing import Any

import sqlalchemy as sa

from orders.attempts.domain import Attempt, AttemptOutcome, DueAttempt
from orders.order.sparing import bound_of, frozen, last_end
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
from orders.sql.freeze_tables import payment_attempts
from orders.sql.statements import made_of, oldest_first
from orders.sql.steps import Operation, Step, insertion
from orders.sql.tables import (
    TERMINAL,
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
_OF_CLIENT = (orders.c.id == _order, unindexed(orders.c.client_id == _client))
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
ATTEMPT, DUE = made_of(Attempt, outcome=AttemptOutcome), made_of(DueAttempt)


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
        sa.select(unpaid.order_id, bound_of(unpaid.expires_at).label("bound"))
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
        .where(*_OF_CLIENT),
    )
    last = last_end(order.c.asks, order.c.bound)
    end = sa.func.least(later(order.c.moment, "for_ms"), sa.func.greatest(last, order.c.moment))
    row = {
        "id": "attempt_id",
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
        insertion(payment_attempts, row, wanted)
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
            kept_until=sa.func.greatest(unpaid.kept_until, until.scalar_subquery(), type_=Instant)
        ),
    )
    return sa.select(
        opened,
        order.c.is_known,
        order.c.bound.is_not(None).label("is_unpaid"),
        order.c.ending,
        order.c.is_full,
        ms_until(opened.c.ends_at, order.c.moment).label("ms"),
    ).select_from(order.join(opened, sa.true(), isouter=True))


# The attempt that a client's provider knows by this reference.
GET_NAMED = sa.select(payment_attempts).where(*_named)
# The same, locked, if it is not settled.
LOCK_NAMED = (
    sa.select(attempts.id, attempts.order_id)
    .where(*_named, unindexed(attempts.settled_at.is_(None)))
    .with_for_update()
)
_failed = {
    "id": "attempt_id",
    "order_id": orders.c.id,
    "client_id": orders.c.client_id,
    "provider": _provider,
    "reference": _reference,
    **dict.fromkeys(("opened_at", "ends_at", "settled_at"), now()),
    "outcome": text_literal(AttemptOutcome.FAILED),
    "asks": sa.false(),
}
# Insert an attempt that has failed before it was known, so that it is not opened later.
ADD_FAILED = (
    insertion(payment_attempts, _failed, *_OF_CLIENT)
    .on_conflict_do_nothing()
    .returning(attempts.id)
)
HAS_ORDER = sa.select(sa.exists(sa.select(orders.c.id).where(*_OF_CLIENT)))
# An order's attempts, oldest first, from a page's end on.
LIST_OF_ORDER = oldest_first(
    sa.select(payment_attempts).where(attempts.order_id == _order),
    *(attempts.opened_at, attempts.id),
)

_among = one_of(attempts.id, ids("ids"))
_is_reported = sa.exists(
    sa.select(payments.c.id)
    .where(
        payments.c.client_id == attempts.client_id,
        payments.c.provider == attempts.provider,
        payments.c.reference == attempts.reference,
        payments.c.order_id == attempts.order_id,
    )
    .correlate(payment_attempts)
)


def _fixed(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    """What never changes of the attempt's order."""
    row = sa.select(column).where(orders.c.id == attempts.order_id)
    return row.correlate(payment_attempts).scalar_subquery()


def _of_order(value: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    """Of the attempt's order, if it is unpaid."""
    row = sa.select(value).select_from(unpaid_orders).where(unpaid.order_id == attempts.order_id)
    return row.correlate(payment_attempts).scalar_subquery()


_bound = sa.func.coalesce(_of_order(unpaid.kept_until), bound_of(attempts.ends_at))
# Attempts that are not settled. Of an order that has ended, a provider is asked for as long.
GET_OPEN = sa.select(
    *attempts["id", "order_id", "client_id", "provider", "reference"],
    _fixed(orders.c.total_minor).label("amount_minor"),
    _fixed(orders.c.currency).label("currency"),
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
    given = p("for_outcome", type_=attempts.outcome.type)
    outcome = sa.case(
        (_is_reported, text_literal(AttemptOutcome.SUCCEEDED)),
        (given.is_not(None), given),
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
            outcome=outcome,
        )
        .returning(attempts.order_id),
    )
    other = payment_attempts.alias("other")
    until = sa.select(
        sa.func.max(
            sa.case(
                (other.c.asks, unpaid.kept_until),
                else_=sa.func.least(other.c.ends_at, unpaid.kept_until),
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
        .values(kept_until=until.correlate(unpaid_orders).scalar_subquery())
        .returning(unpaid.order_id),
    )
    return sa.select(freed)
