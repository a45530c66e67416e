"""The service that docs/tour.md begins with is run as it stands there."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa

from devtools.processes import wait_until
from devtools.valkey import Valkey
from examples.stage import wait_until_empty, working
from tests.e2e.pages import TOUR, the_block

SERVICE = the_block("python", "def cancel", TOUR)


def test_it_cancels_what_is_not_paid_and_returns_the_stock(
    database_url: str, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", valkey.url)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop.py").write_text(SERVICE)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    shop = import_module("shop")
    with shop.engine.begin() as connection:
        connection.execute(shop.stock.insert().values(sku="mug", free=2))
    http = shop.app.test_client()

    def status() -> dict[str, str]:
        with shop.engine.connect() as connection:
            rows = connection.execute(sa.select(shop.orders.c.id, shop.orders.c.status))
            return {row.id: row.status for row in rows}

    assert [http.post(f"/orders/{path}").status_code for path in ("late/mug/1", "paid/mug/1")] == [
        200,
        200,
    ]
    assert http.post("/orders/third/mug/1").status_code == 409  # both mugs are held
    assert http.post("/orders/paid/pay").text == "paid"
    with working(valkey.url, *shop.flows()):
        wait_until(lambda: status()["late"] == "cancelled", "the cancellation")
        wait_until_empty(shop.queue)

    assert status() == {"late": "cancelled", "paid": "paid"}
    assert http.post("/orders/late/pay").status_code == 409
    with shop.engine.connect() as connection:
        assert connection.execute(sa.select(shop.stock.c.free)).scalar_one() == 1
    shop.engine.dispose()
