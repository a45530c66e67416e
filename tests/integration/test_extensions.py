"""Operators move many deadlines at once, each order's once, in batches that can be interrupted."""

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from orders.http.schemas.types import rfc3339
from orders.order.extensions import Extensions, Progress, Wanted
from orders.sql.ids import new_id
from orders.sql.tables import unpaid_orders
from tests.conftest import Api, Shop
from tests.integration.test_orders_cli import run

HOUR_MS = 3_600_000


@pytest.fixture
def extensions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Extensions:
    monkeypatch.setattr("orders.order.extensions.BATCH_SIZE", 2)
    shop.stock()
    shop.stock("cup")
    return Extensions(shop.engine, shop.scheduler)


def extend(
    extensions: Extensions, wanted: Wanted, extension_id: str = "", seconds: float = 60
) -> Progress:
    return extensions.extend(
        wanted,
        ms=HOUR_MS,
        note="a slow bank",
        by="key k",
        extension_id=extension_id or new_id(),
        seconds=seconds,
    )


def test_each_wanted_order_is_extended_once(shop: Shop, extensions: Extensions) -> None:
    orders = [shop.place() for _ in range(5)]
    extension_id = new_id()
    assert extensions.count(Wanted()) == 5
    assert extend(extensions, Wanted(), extension_id) == Progress(5, done=True)
    assert extend(extensions, Wanted(), extension_id) == Progress(0, done=True)
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
        assert extensions.count(wanted) == len(found)
        shop.expire_in(60_000, first)
        assert extend(extensions, wanted) == Progress(len(found), done=True)
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
    assert extend(extensions, Wanted()) == Progress(1, done=True)
    [(_, ms)] = [each for each in shop.scheduler.scheduled if each[1] > 50 * 60_000]
    assert HOUR_MS - 60_000 < ms <= HOUR_MS


def test_an_interrupted_extension_goes_on(shop: Shop, extensions: Extensions) -> None:
    shop.place()
    assert extend(extensions, Wanted(), seconds=-1) == Progress(0, done=False)
    locked, extension_id = shop.place(), new_id()
    row = sa.select(unpaid_orders).where(unpaid_orders.c.order_id == locked.id)
    with shop.engine.begin() as payer:
        payer.execute(row.with_for_update())
        assert extend(extensions, Wanted(), extension_id) == Progress(1, done=False)
    assert extend(extensions, Wanted(), extension_id) == Progress(1, done=True)
    assert {*versions(shop).values()} == {2}


def test_an_extension_over_http(api: Api) -> None:
    api.place()

    def send(**body: Any) -> Any:
        wanted = {"seconds": 900, "reason": "a slow bank", "client": "customer", **body}
        headers = {"Idempotency-Key": "one"}
        response = api.send("POST", "/v1/extensions", wanted, key="ops", headers=headers)
        return response.status_code, json.loads(response.get_data())

    assert send(dry_run=True) == (200, {"extended": 1, "done": True})
    assert send(due_before="2020-01-01T00:00:00Z") == (200, {"extended": 0, "done": True})
    assert send() == (200, {"extended": 1, "done": True})
    assert send() == (200, {"extended": 0, "done": True})
    assert send(client="nobody")[0] == send(sku="nothing")[0] == 404
    assert send(seconds=0)[0] == 422


def test_an_extension_on_the_command_line(api: Api) -> None:
    api.place()
    wanted = ("extend", "--by", "15m", "--sku", "tea", "--placed-after", "2026-01-01")
    assert "1 orders would be extended" in run(api, *wanted, "--dry-run").stdout
    assert "--reason" in run(api, *wanted).output
    assert "is not a time" in run(api, "extend", "--by", "1m", "--due-before", "noon").output
    first, *_, last = run(api, *wanted, "--reason", "a slow bank").stdout.splitlines()
    assert last == "1 orders extended"
    again = run(api, *wanted, "--reason", "a slow bank", "--resume", first.split()[-1])
    assert again.stdout.splitlines()[-1] == "0 orders extended"
