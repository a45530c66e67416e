"""The SQL statements on freezes, each with a name and a sentence."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.errors import ClientNotFound, SkuNotFound
from orders.freezes.domain import Freeze, FreezeState, Scope
from orders.order.waiting import HOLDS, in_scope
from orders.sql.expressions import Instant, later, ms_until, now, text_literal, unindexed
from orders.sql.keeping import freezes
from orders.sql.statements import LAST, Position, Statements
from orders.sql.tables import api_clients, stock_items, unpaid_orders

p = sa.bindparam
_type = freezes.c
_client = p("for_client", type_=api_clients.c.name.type)
_sku = p("for_sku", type_=_type.sku.type)
_client_id = sa.select(api_clients.c.id).where(api_clients.c.name == _client).scalar_subquery()
_is_sku = sa.exists(sa.select(stock_items.c.sku).where(stock_items.c.sku == _sku))
_ends_at = later(now(), "for_ms")
_state = sa.case(
    (freezes.c.given_back_at.is_not(None), text_literal(FreezeState.OVER)),
    (freezes.c.ends_at <= now(), text_literal(FreezeState.THAWING)),
    else_=text_literal(FreezeState.OPEN),
)
_found = sa.select(
    freezes,
    _state.label("state"),
    sa.select(api_clients.c.name)
    .where(api_clients.c.id == freezes.c.client_id)
    .scalar_subquery()
    .label("client"),
)
_row = {
    "id": p("for_id", type_=_type.id.type),
    "client_id": _client_id,
    "sku": _sku,
    "provider": p("for_provider", type_=_type.provider.type),
    "reason": p("for_reason", type_=_type.reason.type),
    "opened_by": p("for_whom", type_=_type.opened_by.type),
    "opened_at": now(),
    "ends_at": _ends_at,
    "asked_ms": p("for_ms", type_=_type.asked_ms.type),
    "give_back_ms": p("for_give_back_ms", type_=_type.give_back_ms.type),
}
# Open a freeze, unless there is one of this id, or no such client or SKU.
OPEN = (
    insert(freezes)
    .from_select(
        [*_row],
        sa.select(*_row.values()).where(
            _client.is_(None) | _client_id.is_not(None), _sku.is_(None) | _is_sku
        ),
    )
    .on_conflict_do_nothing()
    .returning(freezes.c.id)
)
HAS_CLIENT = sa.select(_client_id.is_not(None))
HAS_SKU = sa.select(_is_sku)
_of_id = freezes.c.id == p("for_id")
_open = (_of_id, unindexed(HOLDS), freezes.c.ends_at > now())
# Move the end of an open freeze.
PROLONG = sa.update(freezes).where(*_open).values(ends_at=_ends_at)
# End an open freeze.
THAW = sa.update(freezes).where(*_open).values(ends_at=now(), thawed_by=p("for_whom"))
GET_FREEZE = _found.where(_of_id)
# In how many milliseconds a freeze ends that holds.
GET_LEFT_MS = sa.select(ms_until(freezes.c.ends_at)).where(_of_id, unindexed(HOLDS))
# Freezes that hold, the one that ends first before the others.
LIST_HOLDING = _found.where(HOLDS).order_by(freezes.c.ends_at, freezes.c.id).limit(p("most"))
_last = sa.tuple_(p("last_at", type_=Instant), p("last_id", type_=_type.id.type))
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
        in_scope(
            unpaid_orders,
            sa.case((_client.is_not(None), _client_id)),
            _sku,
            p("for_provider", type_=_type.provider.type),
        ),
    )
    .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    .limit(p("most"))
    .subquery()
)
# How many unpaid orders in a scope expire before a moment, up to a number.
COUNT_CONCERNED = sa.select(sa.func.count()).select_from(_concerned)


class FreezeRepository(Statements):
    """The statements, on one connection."""

    def open(
        self, freeze_id: str, scope: Scope, *, reason: str, by: str, ms: int, give_back_ms: int
    ) -> bool:
        """Open a freeze; false if there is one of this id. Raises ClientNotFound, SkuNotFound."""
        opened = self._run(
            OPEN,
            for_id=freeze_id,
            **_values(scope),
            for_reason=reason,
            for_whom=by,
            for_ms=ms,
            for_give_back_ms=give_back_ms,
        )
        if opened.one_or_none() is not None:
            return True
        if scope.client is not None and not self._run(HAS_CLIENT, for_client=scope.client).scalar():
            raise ClientNotFound
        if scope.sku is not None and not self._run(HAS_SKU, for_sku=scope.sku).scalar():
            raise SkuNotFound
        return False

    def prolong(self, freeze_id: str, ms: int) -> bool:
        """Have an open freeze end so many milliseconds from now; whether it is open."""
        return bool(self._run(PROLONG, for_id=freeze_id, for_ms=ms).rowcount)

    def thaw(self, freeze_id: str, by: str) -> bool:
        """End an open freeze; whether it was open."""
        return bool(self._run(THAW, for_id=freeze_id, for_whom=by).rowcount)

    def get(self, freeze_id: str) -> Freeze | None:
        row = self._run(GET_FREEZE, for_id=freeze_id).one_or_none()
        return None if row is None else _freeze(row)

    def left_ms(self, freeze_id: str) -> int | None:
        """In how many milliseconds a freeze ends; None if it no longer holds."""
        return self._run(GET_LEFT_MS, for_id=freeze_id).scalar_one_or_none()

    def holding(self, most: int) -> list[Freeze]:
        """Those that are open or thawing, the one that ends first before the others."""
        return [_freeze(row) for row in self._run(LIST_HOLDING, most=most)]

    def page(self, *, page_size: int, after: Position | None) -> list[Freeze]:
        """The latest first."""
        at, last_id = after or LAST
        rows = self._run(LIST_FREEZES, last_at=at, last_id=last_id, page_size=page_size)
        return [_freeze(row) for row in rows]

    def count(self, scope: Scope, before: Any, most: int) -> int:
        """How many unpaid orders in a scope expire before a moment; counts ``most`` at most."""
        values = {**_values(scope), "before": before, "most": most}
        return int(self._run(COUNT_CONCERNED, **values).scalar_one())


def _values(scope: Scope) -> dict[str, str | None]:
    return {f"for_{name}": value for name, value in scope._asdict().items()}


def _freeze(row: sa.Row[Any]) -> Freeze:
    return Freeze(
        id=row.id,
        scope=Scope(row.client, row.sku, row.provider),
        reason=row.reason,
        opened_by=row.opened_by,
        opened_at=row.opened_at,
        ends_at=row.ends_at,
        asked_ms=row.asked_ms,
        give_back_seconds=row.give_back_ms // 1000,
        state=FreezeState(row.state),
        thawed_by=row.thawed_by,
        given_back=row.given_back,
        given_back_at=row.given_back_at,
    )
