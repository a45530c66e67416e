"""The SQL statements on freezes, each with a name and a sentence."""

import sqlalchemy as sa

from orders.freezes.domain import Freeze, FreezeState
from orders.order.sparing import IN_FORCE, is_of
from orders.sql.expressions import Instant, later, ms_until, now, text_literal, unindexed
from orders.sql.freeze_tables import freezes
from orders.sql.statements import made_of
from orders.sql.steps import insertion
from orders.sql.tables import api_clients, unpaid_orders

p = sa.bindparam
FREEZE = made_of(Freeze, state=FreezeState)
_client = p("for_client", type_=api_clients.c.name.type)
_client_id = sa.select(api_clients.c.id).where(api_clients.c.name == _client).scalar_subquery()
_ends_at = later(now(), "for_ms")
_state = sa.case(
    (freezes.c.given_back_at.is_not(None), text_literal(FreezeState.OVER)),
    (freezes.c.ends_at <= now(), text_literal(FreezeState.THAWING)),
    else_=text_literal(FreezeState.OPEN),
)
_found = sa.select(
    freezes,
    (freezes.c.give_back_ms // sa.literal_column("1000", sa.Integer)).label("give_back_seconds"),
    _state.label("state"),
    sa.select(api_clients.c.name)
    .where(api_clients.c.id == freezes.c.client_id)
    .scalar_subquery()
    .label("client"),
)
_row = {
    "id": "for_id",
    "client_id": _client_id,
    "reason": "for_reason",
    "opened_by": "for_whom",
    "opened_at": now(),
    "ends_at": _ends_at,
    "asked_ms": "for_ms",
    "give_back_ms": "for_give_back_ms",
}
_is_client = _client.is_(None) | _client_id.is_not(None)
# Open a freeze, unless there is one of this id, or no such client.
OPEN = insertion(freezes, _row, _is_client).on_conflict_do_nothing().returning(freezes.c.id)
IS_CLIENT = sa.select(_is_client)
_of_id = freezes.c.id == p("for_id")
_open = (_of_id, unindexed(IN_FORCE), freezes.c.ends_at > now())
# Move the end of an open freeze.
PROLONG = sa.update(freezes).where(*_open).values(ends_at=_ends_at)
# End an open freeze.
THAW = sa.update(freezes).where(*_open).values(ends_at=now(), thawed_by=p("for_whom"))
GET_FREEZE = _found.where(_of_id)
# In how many milliseconds a freeze ends that is in force.
GET_LEFT_MS = sa.select(ms_until(freezes.c.ends_at)).where(_of_id, unindexed(IN_FORCE))
# Freezes in force, the one that ends first before the others.
LIST_IN_FORCE = _found.where(IN_FORCE).order_by(freezes.c.ends_at, freezes.c.id).limit(p("most"))
# Open freezes that were opened by somebody, such as a rule.
LIST_OPEN = _found.where(
    IN_FORCE, freezes.c.ends_at > now(), freezes.c.opened_by == p("for_whom")
).order_by(freezes.c.ends_at, freezes.c.id)
_last = sa.tuple_(p("last_at", type_=Instant), p("last_id", type_=freezes.c.id.type))
# Freezes, the latest first, from a page's end on.
LIST_FREEZES = (
    _found.where(sa.tuple_(freezes.c.opened_at, freezes.c.id) < _last)
    .order_by(freezes.c.opened_at.desc(), freezes.c.id.desc())
    .limit(p("page_size"))
)
_concerned = (
    sa.select(unpaid_orders.c.order_id)
    .where(
        unpaid_orders.c.expires_at < p("before", type_=Instant),
        is_of(unpaid_orders, _client_id),
    )
    .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    .limit(p("most"))
    .subquery()
)
# How many unpaid orders, a client's or all, expire before a moment, up to a number.
COUNT_CONCERNED = sa.select(sa.func.count()).select_from(_concerned)
