"""What all routes share: who calls, and what they call."""

from collections.abc import Collection
from typing import Any

import structlog
from apiflask import HTTPTokenAuth
from flask import current_app, g, request

from orders.bootstrap import Services
from orders.clients.domain import Client, parted
from orders.errors import Forbidden
from orders.sql.acting import KEY_ID

log = structlog.get_logger("orders")


def check_scopes(client: Client, scopes: Collection[str]) -> None:
    """Raises Forbidden unless the key has one of these scopes, if there are any."""
    if scopes and client.scopes.isdisjoint(scopes):
        raise Forbidden(f"It needs the scope {' or '.join(scopes)}.")


class KeyAuth(HTTPTokenAuth):
    """Says which scope a key lacks."""

    def authorize(self, role: Any, user: Any, auth: Any) -> bool:  # noqa: ARG002
        check_scopes(user, role)
        return True


auth = KeyAuth(
    realm="orders",
    description=(
        "An API key, sent as `Authorization: Bearer KEY`. A key belongs to a client, which owns "
        "orders, and has scopes: `orders` places, reads, extends and cancels the client's orders, "
        "`payments` reports payments and refunds, `ops` sets and adjusts stock, reads every "
        "client's orders, freezes deadlines, and looks after the queues. `flask --app orders.app keys create NAME "
        "--scope orders` makes one."
    ),
)


def services() -> Services:
    """What the application was wired with."""
    wired: Services = current_app.extensions["orders"]
    return wired


@auth.verify_token  # type: ignore[untyped-decorator]  # Flask-HTTPAuth has no types
def verify(token: str) -> Client | None:
    """The client, if the key is valid. Raises TooManyRequests."""
    client = identify(token) if token else None
    if client is not None:
        key_id, _ = parted(token)
        g.rate_limit = services().rate_limits.admit(key_id)
        KEY_ID.set(key_id)
    return client


def identify(api_key: str) -> Client | None:
    """The client whose key this is; wrong ones are counted against the address that they come from.

    Raises TooManyRequests after too many of them, but not for a key that exists.
    """
    clients, limits = services().clients, services().rate_limits
    client = clients.recall(api_key)
    if client is None:
        key_id, _ = parted(api_key)
        limits.admit_stranger(request.remote_addr, unless=lambda: clients.knows(key_id))
        client = clients.authenticate(api_key)
    if client is None:
        limits.count_stranger(request.remote_addr)
    return client


def current_client() -> Client:
    """The client whose key came with the request."""
    client = auth.current_user
    assert isinstance(client, Client)
    return client


def caller() -> str:
    """The id of the client whose key came with the request."""
    return current_client().id


def calling_key() -> str:
    """The key that came with the request, as it is noted with what it changed."""
    return f"key {parted(auth.get_auth().token)[0]}"


def log_key(action: str, **facts: Any) -> None:
    """Log who changed something, with which key."""
    key_id, _ = parted(auth.get_auth().token)
    log_operator(action, current_client(), key_id, **facts)


def log_operator(action: str, client: Client, key_id: str, **facts: Any) -> None:
    """Log who changed something, and what."""
    log.info("operator", action=action, client=client.name, key=key_id, **facts)


def may(scope: str) -> bool:
    """Whether the key that came has this scope."""
    client = auth.current_user
    return isinstance(client, Client) and scope in client.scopes


def reader() -> str | None:
    """The client whose orders the key may read; None, for everybody's, with the scope ops."""
    return None if may("ops") else caller()


def page(found: list[Any], query: Any) -> dict[str, Any]:
    """A page of a list, with the cursor of the next one."""
    more = len(found) == query.limit
    return {"data": found, "next_cursor": query.cursor_after(found[-1]) if more else None}


def replay_header(replayed: bool) -> dict[str, str]:  # noqa: FBT001  the name says what it is
    """Marks a response that was given before."""
    return {"Idempotent-Replayed": "true"} if replayed else {}
