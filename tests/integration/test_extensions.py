"""Operators move many deadlines at once, each order's once, in batches that can be interrupted."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.http.schemas.types import rfc3339
from orders.order.extensions import ExtensionProgress, Extensions, Wanted
from orders.sql.ids import new_id
from orders.sql.tables import unpaid_orders
from tests.conftest import Api, Shop
from tests.integration.test_orders_cli import run

HOUR_MS = 3_600_000


@pytest.fixture
def extensions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Extensions:
    monkeypatch.setattr("orders.order.extensions.BATCH_SIZE", 2)
    shop.stock("cup")
    return Extensions(shop.engine, shop.scheduler)


def extend(
    extensions: Extensions, wanted: Wanted, extension_id: str = "", seconds: float = 60
) -> ExtensionProgress:
    return extensions.extend(
        wanted,
        ms=HOUR_MS,
        note="a slow bank",
        by="key k",
        extension_id=extension_id or new_id(),
        seconds=seconds,
    )


def test_what_is_wanted_goes_by_the_databases_clock(
    shop: Shop, extensions: Extensions, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.place()
    extension_id = new_id()
    monkeypatch.setattr("orders.sql.ids.uuid7", lambda: UUID(int=uuid4().int >> 48))
    assert extensions.count(Wanted()) == (1, True)
    assert extend(extensions, Wanted(), extension_id) == ExtensionProgress(1, done=True)


def test_each_wanted_order_is_extended_once(shop: Shop, extensions: Extensions) -> None:
    orders = [shop.place() for _ in range(5)]
    extension_id = new_id()
    assert extensions.count(Wanted()) == (5, True)
    assert extend(extensions, Wanted(), extension_id) == ExtensionProgress(5, done=True)
    assert extend(extensions, Wanted(), extension_id) == ExtensionProgress(0, done=True)
    for order in orders:
        after = shop.service.order(shop.client, order.id)
        assert after.expires_at == order.expires_at + timedelta(hours=1)
        assert after.version == 2
        [_, event] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)
        assert event.type == "order.extended"
        assert event.data == {
            "previous_expires_at": rfc3339(order.expires_at),
            "expires_at": rfc3339(after.expires_at),
            "reason": "operators",
            "extension_id": extension_id,
            "note": "a slow bank",
            "by": "key k",
        }
    assert {id_ for id_, ms in shop.scheduler.scheduled if ms > HOUR_MS} == {
        each.id for each in orders
    }


def test_only_what_is_wanted_is_extended(shop: Shop, extensions: Extensions) -> None:
    first, cup, theirs = shop.place(), shop.basket({"cup": 1}), shop.place(shop.other)
    shop.expire_in(60_000, first)
    due = first.created_at + timedelta(minutes=10)
    for wanted, found in (
        (Wanted(), {first.id, cup.id, theirs.id}),
        (Wanted(client_id=shop.other), {theirs.id}),
        (Wanted(sku="cup"), {cup.id}),
        (Wanted(client_id=shop.other, sku="cup"), set()),
        (Wanted(placed_after=first.created_at), {cup.id, theirs.id}),
        (Wanted(due_before=due), {first.id}),
    ):
        before = versions(shop)
        assert extensions.count(wanted) == (len(found), True)
        shop.expire_in(60_000, first)
        assert extend(extensions, wanted) == ExtensionProgress(len(found), done=True)
        after = versions(shop)
        assert {id_ for id_ in after if after[id_] > before[id_]} == found
        shop.expire_in(60_000, first)


def versions(shop: Shop) -> dict[str, int]:
    with shop.engine.connect() as connection:
        rows = connection.execute(sa.select(unpaid_orders.c.order_id, unpaid_orders.c.version))
        return {row.order_id: row.version for row in rows}


def test_an_overdue_order_is_extended_from_now_on(shop: Shop, extensions: Extensions) -> None:
    order = shop.place()
    shop.expire_in(-HOUR_MS, order)
    assert extend(extensions, Wanted()) == ExtensionProgress(1, done=True)
    [(_, ms)] = [each for each in shop.scheduler.scheduled if each[1] > 50 * 60_000]
    assert HOUR_MS - 60_000 < ms <= HOUR_MS


def test_an_interrupted_extension_goes_on(shop: Shop, extensions: Extensions) -> None:
    shop.place()
    assert extend(extensions, Wanted(), seconds=-1) == ExtensionProgress(0, done=False)
    locked, extension_id = shop.place(), new_id()
    row = sa.select(unpaid_orders).where(unpaid_orders.c.order_id == locked.id)
    with shop.engine.begin() as payer:
        payer.execute(row.with_for_update())
        assert extend(extensions, Wanted(), extension_id) == ExtensionProgress(1, done=False)
    assert extend(extensions, Wanted(), extension_id) == ExtensionProgress(1, done=True)
    assert {*versions(shop).values()} == {2}


def test_an_extension_of_many_goes_on_where_it_was(
    shop: Shop, extensions: Extensions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of it one call has time for: here a page, of which what is wanted is the last."""
    for _ in range(6):
        shop.place()
    shop.stock("pot")
    shop.place(pot=1)
    extension_id, reads = new_id(), count()
    clock = SimpleNamespace(monotonic=lambda: next(reads))
    monkeypatch.setattr("orders.order.extensions.time", clock)
    found = [extend(extensions, Wanted(sku="pot"), extension_id, seconds=1.5) for _ in range(5)]
    assert found == [(0, False)] * 3 + [(1, False), (0, True)]


#: A statement that moves deadlines has begun, and goes on when nobody else is at it.
IN_TURN = """
CREATE FUNCTION in_turn() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock(28); RETURN NULL; END $$;
CREATE TRIGGER in_turn BEFORE UPDATE ON unpaid_orders FOR EACH STATEMENT EXECUTE FUNCTION in_turn()
"""
WAITING = sa.text(
    "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
    " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
)


def test_two_runs_of_one_extension_extend_an_order_once(shop: Shop, extensions: Extensions) -> None:
    """Each has looked at the order before the other changes it."""
    order, extension_id = shop.place(), new_id()
    with shop.engine.begin() as connection:
        connection.execute(sa.text(IN_TURN))
    try:
        with ThreadPoolExecutor(2) as pool, shop.engine.connect() as gate:
            with gate.begin():
                gate.execute(sa.text("SELECT pg_advisory_xact_lock(28)"))
                runs = [pool.submit(extend, extensions, Wanted(), extension_id) for _ in range(2)]
                wait_until(lambda: gate.scalar(WAITING) == 2, "both to have begun")
            found = sorted(run.result(60) for run in runs)
    finally:
        with shop.engine.begin() as connection:
            connection.execute(sa.text("DROP FUNCTION in_turn CASCADE"))
    assert found == [ExtensionProgress(0, done=False), ExtensionProgress(1, done=True)]
    after = shop.service.order(shop.client, order.id)
    assert after.expires_at == order.expires_at + timedelta(hours=1)
    assert extend(extensions, Wanted(), extension_id) == ExtensionProgress(0, done=True)


def test_an_extension_over_http(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.place()

    def send(**body: Any) -> Any:
        wanted = {"seconds": 900, "reason": "a slow bank", "client": "customer", **body}
        headers = {"Idempotency-Key": "one"}
        response = api.send("POST", "/v1/extensions", wanted, key="ops", headers=headers)
        return response.status_code, json.loads(response.get_data())

    assert send(dry_run=True) == (200, {"extended": 1, "done": True})
    assert send() == (200, {"extended": 1, "done": True})
    api.place()
    assert send() == (200, {"extended": 0, "done": True}), "what was placed later is not extended"
    for other in ({"seconds": 901}, {"reason": "why"}, {"due_before": "2020-01-01T00:00:00Z"}):
        status, problem = send(**other)
        assert (status, problem["code"]) == (422, "key_reused")
    assert send(client="nobody")[0] == send(sku="nothing")[0] == 404
    assert send(seconds=0)[0] == 422
    monkeypatch.setattr("orders.http.routes.extensions.SECONDS", -1.0)
    assert send(dry_run=True) == (200, {"extended": 0, "done": False}), "there was no time for more"


def test_an_extension_on_the_command_line(api: Api) -> None:
    api.place()
    wanted = ("extend", "--by", "15m", "--sku", "tea", "--placed-after", "2026-01-01")
    assert "1 orders would be extended" in run(api, *wanted, "--dry-run").stdout
    assert "--reason" in run(api, *wanted).output
    assert "is more than a day" in run(api, "extend", "--by", "99999999h").output
    assert "at least 1s" in run(api, "extend", "--by", "0", "--reason", "none").output
    assert "is not a time" in run(api, "extend", "--by", "1m", "--due-before", "noon").output
    first, *_, last = run(api, *wanted, "--reason", "a slow bank").stdout.splitlines()
    assert last == "1 orders extended"
    again = run(api, *wanted, "--reason", "a slow bank", "--resume", first.split()[-1])
    assert again.stdout.splitlines()[-1] == "0 orders extended"
