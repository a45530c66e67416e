"""Freezes: deadlines stand still."""

from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint
from flask import url_for

from orders.errors import (
    ClientNotFound,
    FreezeEnded,
    FreezeNotFound,
    FreezeOutOfRange,
    KeyReused,
    SkuNotFound,
)
from orders.freezes.domain import Scope
from orders.http.auth import auth, caller, calling_key, page, replay_header, services
from orders.http.contract import raises, sends
from orders.http.schemas.freezes import (
    FreezeChangeIn,
    FreezeIn,
    FreezeOut,
    FreezesOut,
    FreezesQuery,
)
from orders.http.schemas.orders import OptionalKeyIn
from orders.sql.ids import named_id

freezes = APIBlueprint(
    "freezes",
    __name__,
    url_prefix="/v1",
    tag={"name": "Freezes", "description": "While one holds, its orders are not cancelled."},
)
ROLES = ["ops"]


@freezes.post("/freezes")
@freezes.auth_required(auth, roles=ROLES)
@freezes.input(OptionalKeyIn, location="headers", arg_name="header")
@freezes.input(FreezeIn, arg_name="body")
@freezes.output(FreezeOut, HTTPStatus.CREATED)
@raises(ClientNotFound, FreezeOutOfRange, KeyReused, SkuNotFound)
@sends("Location", "Idempotent-Replayed")
def create_freeze(header: OptionalKeyIn, body: FreezeIn) -> Any:
    """Stop cancellations by timeout, of all orders or of some.

    Orders can still be placed, paid, extended and cancelled by hand. When the freeze ends, orders
    that would expire before give_back_seconds after that, expire then.
    """
    key = header.idempotency_key
    made, replayed = services().freezes.open(
        Scope(body.client, body.sku),
        reason=body.reason,
        by=calling_key(),
        seconds=body.seconds,
        give_back_seconds=body.give_back_seconds,
        made_id=None if key is None else named_id(caller(), key),
    )
    location = {"Location": url_for("freezes.get_freeze", freeze_id=made.id)}
    return made, HTTPStatus.CREATED, location | replay_header(replayed)


@freezes.get("/freezes")
@freezes.auth_required(auth, roles=ROLES)
@freezes.input(FreezesQuery, location="query", arg_name="query")
@freezes.output(FreezesOut)
def list_freezes(query: FreezesQuery) -> Any:
    """Freezes, the latest first."""
    return page(services().freezes.page(page_size=query.limit, after=query.after), query)


@freezes.get("/freezes/<uuid:freeze_id>")
@freezes.auth_required(auth, roles=ROLES)
@freezes.output(FreezeOut)
@raises(FreezeNotFound)
def get_freeze(freeze_id: object) -> Any:
    """One freeze."""
    return services().freezes.get(str(freeze_id))


@freezes.patch("/freezes/<uuid:freeze_id>")
@freezes.auth_required(auth, roles=ROLES)
@freezes.input(FreezeChangeIn, arg_name="body")
@freezes.output(FreezeOut)
@raises(FreezeEnded, FreezeNotFound, FreezeOutOfRange)
def prolong_freeze(freeze_id: object, body: FreezeChangeIn) -> Any:
    """Have an open freeze end so many seconds from now, up to a day."""
    return services().freezes.prolong(str(freeze_id), by=calling_key(), seconds=body.seconds)


@freezes.delete("/freezes/<uuid:freeze_id>")
@freezes.auth_required(auth, roles=ROLES)
@freezes.output(FreezeOut)
@raises(FreezeNotFound)
def thaw_freeze(freeze_id: object) -> Any:
    """End a freeze now.

    Its orders get their time back before any of them is cancelled. One that has ended stays as it is.
    """
    return services().freezes.thaw(str(freeze_id), by=calling_key())
