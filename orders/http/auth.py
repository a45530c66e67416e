"""What all routes share: who calls, and what they call."""

from collections.abc import Collection
from functools import partial
from typing import Any

from flask import current_app, g, request

from orders.clients.domain import Client, parted
from orders.db.acting import KEY_ID
from orders.errors import Forbidden, Unauthorized
from orders.wiring import Services


def check_scopes(client: Client, scopes: Collection[str]) -> None:
    """Raises Forbidden unless the key has one of these scopes, if there are any."""
    if scopes and client.scopes.isdisjoint(scopes):
        raise Forbidden(f"It needs the scope {' or '.join(scopes)}.")


def services() -> Services:
    """What the application was wired with."""
    wired: Services = current_app.extensions["orders"]
    return wired


def authenticate(scopes: Collection[str], *, stale: bool = False) -> None:
    """Find the client whose key came with the request; with ``stale``, while the database does not answer, too, if the
    key was cached. Raises Unauthorized, TooManyRequests, Forbidden, StorageUnavailable.
    """
    given = request.authorization
    key = given.token if given and given.type == "bearer" else None
    if not key:
        raise Unauthorized
    wired, (key_id, _) = services(), parted(key)
    clients, hooks = wired.clients, wired.hooks
    client = clients.recall(key) or hooks.check(
        partial(clients.authenticate, key, stale=stale),
        request.remote_addr,
        known=lambda: clients.knows(key_id),
    )
    for hook in hooks.before_serving:
        hook(key_id)
    g.client, g.key_id = client, key_id
    KEY_ID.set(key_id)
    check_scopes(client, scopes)


def current_client() -> Client:
    """The client whose key came with the request."""
    client: Client = g.client
    return client


def caller() -> str:
    """The id of the client whose key came with the request."""
    return current_client().id


def may(scope: str) -> bool:
    """Whether the key that came has this scope."""
    return scope in current_client().scopes


def reader() -> str | None:
    """The client whose orders the key may read; None, for all clients' orders, with the scope ops."""
    return None if may("ops") else caller()


def page(found: list[Any], query: Any) -> dict[str, Any]:
    """A page of a list, with the cursor of the next one."""
    more = len(found) == query.limit
    return {"data": found, "next_cursor": query.cursor_after(found[-1]) if more else None}


def location(id_: str) -> dict[str, str]:
    """Where something is found that was made: below the path to which it was posted."""
    return {"Location": f"{request.script_root}{request.path}/{id_}"}


def replay_header(replayed: bool) -> dict[str, str]:  # noqa: FBT001  the name says what it is
    """Marks a response that was given before."""
    return {"Idempotent-Replayed": "true"} if replayed else {}
