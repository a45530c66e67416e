"""Clients and their keys."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from orders.caches import CACHE_SECONDS
from orders.clients.domain import ApiKey, parted
from orders.clients.service import Clients
from orders.db.tables import api_keys
from orders.errors import KeyNotFound, Unauthorized
from tests.kit.races import together
from tests.kit.shop import Shop, client_id


@pytest.fixture
def clients(shop: Shop) -> Clients:
    """As another process has them: it remembers nobody."""
    return Clients(shop.engine)


def id_of(key: str) -> str:
    return parted(key)[0]


def info(clients: Clients, key: str) -> ApiKey:
    [found] = [each for each in clients.list_keys() if each.id == id_of(key)]
    return found


def test_a_key_is_stored_as_a_hash_and_authenticates(shop: Shop, clients: Clients) -> None:
    key = clients.create_key("new", ["orders", "ops"])
    client = clients.authenticate(key)
    assert (client.name, client.scopes) == ("new", frozenset({"orders", "ops"}))
    assert key.partition(".")[2] not in repr(shop.tables())


def test_a_client_has_any_number_of_keys(clients: Clients) -> None:
    first, second = clients.create_key("new", ["orders"]), clients.create_key("new", ["payments"])
    assert client_id(clients, first) == client_id(clients, second)
    told = clients.authenticate(second)
    assert told.scopes == {"payments"}
    assert [key.id for key in clients.list_keys("new")] == [id_of(first), id_of(second)]
    assert clients.list_keys("nobody") == []


def test_a_revoked_key_is_refused_at_once_and_soon_elsewhere(
    shop: Shop, clients: Clients, tick: Callable[[float], None]
) -> None:
    key, other = (clients.create_key("new", ["orders"]) for _ in range(2))
    elsewhere = Clients(shop.engine)
    assert clients.authenticate(key)
    assert elsewhere.authenticate(key)
    assert clients.revoke(id_of(key)).expired
    for stale in (False, True):
        with pytest.raises(Unauthorized):
            clients.authenticate(key, stale=stale)
    tick(CACHE_SECONDS)
    assert elsewhere.authenticate(key)
    tick(0.001)
    with pytest.raises(Unauthorized):
        elsewhere.authenticate(key)
    tick(-0.001)
    with pytest.raises(Unauthorized):  # it was to be forgotten
        elsewhere.authenticate(key)
    assert clients.authenticate(other), "it is another key"


def test_a_key_that_expires_is_cached_no_longer(
    shop: Shop, clients: Clients, tick: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.caches.CACHE_SECONDS", 600.0)
    key = clients.create_key("new", ["orders"], timedelta(seconds=60))
    assert clients.authenticate(key)
    with shop.engine.begin() as connection:  # its time is over
        connection.execute(
            sa.update(api_keys)
            .where(api_keys.c.id == id_of(key))
            .values(expires_at=api_keys.c.created_at)
        )
    tick(60.001)  # the first look-up said how long it is good for
    with pytest.raises(Unauthorized):
        clients.authenticate(key)
    assert info(clients, key).expired


def test_a_rotated_key_has_a_successor_and_is_good_for_a_while(clients: Clients) -> None:
    old = clients.create_key("new", ["orders", "payments"], timedelta(days=90))
    new = clients.rotate(id_of(old), timedelta(hours=2))
    assert clients.authenticate(new) == clients.authenticate(old)
    ends = info(clients, old).expires_at
    assert ends is not None
    assert timedelta(hours=2) - timedelta(minutes=1) < ends - info(clients, new).created_at
    assert ends - info(clients, new).created_at < timedelta(hours=2, minutes=1)
    lasts = info(clients, new).expires_at
    assert lasts is not None, "the old one was to expire, and so is this"
    assert lasts - info(clients, new).created_at == timedelta(days=90)
    again = info(clients, clients.rotate(id_of(old)))  # its first output was lost
    assert again.expires_at is not None
    assert again.expires_at - again.created_at == timedelta(days=90)
    forever = clients.create_key("new", ["orders"])
    assert info(clients, clients.rotate(id_of(forever))).expires_at is None


def test_rotating_never_makes_a_key_last_longer(clients: Clients) -> None:
    key = clients.create_key("new", ["orders"], timedelta(hours=1))
    expires_at = info(clients, key).expires_at
    clients.rotate(id_of(key), timedelta(days=1))
    assert info(clients, key).expires_at == expires_at


def test_a_revoked_key_has_no_successor(clients: Clients) -> None:
    key = clients.create_key("new", ["orders"])
    expired_at = clients.revoke(id_of(key)).expires_at
    with pytest.raises(KeyNotFound, match="has expired"):
        clients.rotate(id_of(key))
    assert clients.revoke(id_of(key)).expires_at == expired_at
    assert len(clients.list_keys("new")) == 1


@pytest.mark.parametrize("key_id", ["", "nonsense", "00000000-0000-0000-0000-000000000000"])
def test_a_key_that_is_none_is_neither_revoked_nor_rotated(clients: Clients, key_id: str) -> None:
    with pytest.raises(KeyNotFound):
        clients.revoke(key_id)
    with pytest.raises(KeyNotFound):
        clients.rotate(key_id)


def test_the_last_use_is_noted_to_the_minute(shop: Shop, clients: Clients) -> None:
    key = clients.create_key("new", ["orders"])
    assert info(clients, key).last_used_at is None
    assert clients.authenticate(key)
    first = info(clients, key).last_used_at
    assert first is not None
    assert Clients(shop.engine).authenticate(key)
    assert info(clients, key).last_used_at == first, "one write a minute is enough"
    with shop.engine.begin() as connection:
        connection.execute(
            sa.update(api_keys)
            .where(api_keys.c.id == id_of(key))
            .values(last_used_at=first - timedelta(minutes=2))
        )
    assert Clients(shop.engine).authenticate(key)
    assert (info(clients, key).last_used_at or first) >= first


def test_many_uses_at_once_are_one_write(shop: Shop, clients: Clients) -> None:
    key = clients.create_key("new", ["orders"])
    with statements(shop.engine) as said:
        together(*[lambda: Clients(shop.engine).authenticate(key)] * 4)
        notes = [rows for text, rows in said if text.startswith("UPDATE api_keys")]
    assert sum(notes) == 1


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[tuple[str, int]]]:
    """What the engine is told, and how many rows that changed."""
    said: list[tuple[str, int]] = []

    def after(_c: object, cursor: Any, statement: str, *_: object) -> None:
        said.append((statement, cursor.rowcount))

    sa.event.listen(engine, "after_cursor_execute", after)
    try:
        yield said
    finally:
        sa.event.remove(engine, "after_cursor_execute", after)


def test_a_database_that_takes_no_writes_may_still_be_read(shop: Shop, clients: Clients) -> None:
    key = clients.create_key("new", ["orders"])
    with shop.engine.begin() as connection:
        [name] = connection.scalars(sa.text("SELECT current_database()"))
        connection.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    shop.engine.dispose()
    with statements(shop.engine) as said:
        assert clients.authenticate(key)
    assert [text for text, _ in said if text.startswith("UPDATE")] == []


def test_a_key_that_was_seen_is_not_looked_up_again(shop: Shop, clients: Clients) -> None:
    key = clients.create_key("new", ["orders"])
    assert clients.authenticate(key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shop.engine, "connect", None)
        assert clients.authenticate(key)


def test_any_other_key_authenticates_nobody(clients: Clients) -> None:
    key_id, secret = parted(key := clients.create_key("new", ["orders"]))
    other_id = id_of(clients.create_key("new", ["orders"]))
    for other in (
        "",
        ".",
        "nonsense",
        key_id,
        f"{key_id}.",
        f"{key_id}.{secret}x",
        f"{key_id}..{secret}",
        f"{secret}.{key_id}",
        f"{other_id}.{secret}",
        f"00000000-0000-0000-0000-000000000000.{secret}",
        f"nul\0.{secret}",
        f"\u0661.{secret}",
        f"{key_id}.\u0661",
    ):
        with pytest.raises(Unauthorized):
            clients.authenticate(other)
    assert info(clients, key).last_used_at is None
