"""Freezes: deadlines stand still."""

from typing import Any

from orders import errors
from orders.features.freezes.errors import FreezeEnded, FreezeNotFound, FreezeOutOfRange
from orders.features.freezes.schemas import (
    FreezeChangeIn,
    FreezeIn,
    FreezeOut,
    FreezesOut,
    FreezesQuery,
)
from orders.features.freezes.service import Freezes
from orders.features.operators import calling_key, log_key
from orders.features.parts import named_id
from orders.http.auth import caller, location, page, replay_header, services
from orders.http.routing import Routes, answers
from orders.http.schemas.orders import OptionalKeyIn

freezes = Routes("freezes", "Freezes", "While one is in force, its orders are not cancelled.")
ROLES = ["ops"]


@freezes.post("/freezes", returns=FreezeOut, status=201, scopes=ROLES)
@answers(
    errors.ClientNotFound,
    FreezeOutOfRange,
    errors.KeyReused,
    sends=["Location", "Idempotent-Replayed"],
)
def create_freeze(header: OptionalKeyIn, body: FreezeIn) -> Any:
    """Stop cancellations by timeout, of all orders or of one client's.

    Orders can still be placed, paid, extended and cancelled by hand. When the freeze ends, orders
    that would expire before give_back_seconds after that, expire then.
    """
    key = header.idempotency_key
    made, replayed = services()[Freezes].open(
        body.client,
        reason=body.reason,
        by=calling_key(),
        seconds=body.seconds,
        give_back_seconds=body.give_back_seconds,
        made_id=None if key is None else named_id(caller(), key),
    )
    log_key("freeze", freeze=made.id)
    return made, location(made.id) | replay_header(replayed)


@freezes.get("/freezes", returns=FreezesOut, scopes=ROLES)
def list_freezes(query: FreezesQuery) -> Any:
    """Freezes, the latest first."""
    return page(services()[Freezes].page(page_size=query.limit, after=query.after), query)


@freezes.get("/freezes/<uuid:freeze_id>", returns=FreezeOut, scopes=ROLES)
@answers(FreezeNotFound)
def get_freeze(freeze_id: str) -> Any:
    """One freeze."""
    return services()[Freezes].get(freeze_id)


@freezes.patch("/freezes/<uuid:freeze_id>", returns=FreezeOut, scopes=ROLES)
@answers(FreezeEnded, FreezeNotFound, FreezeOutOfRange)
def prolong_freeze(freeze_id: str, body: FreezeChangeIn) -> Any:
    """Have an open freeze end so many seconds from now, up to a day."""
    prolonged = services()[Freezes].prolong(freeze_id, by=calling_key(), seconds=body.seconds)
    log_key("prolong", freeze=freeze_id)
    return prolonged


@freezes.delete("/freezes/<uuid:freeze_id>", returns=FreezeOut, scopes=ROLES)
@answers(FreezeNotFound)
def thaw_freeze(freeze_id: str) -> Any:
    """End a freeze now.

    Its orders get their time back before any of them is cancelled. One that has ended stays as it is.
    """
    ended = services()[Freezes].thaw(freeze_id, by=calling_key())
    log_key("thaw", freeze=freeze_id)
    return ended
