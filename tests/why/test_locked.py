"""Who holds the row that an overdue order waits for is said, instead of that the database is down."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.db.database import reading
from orders.db.tables import stock_items, unpaid_orders
from orders.errors import RowLocked
from orders.features.doctor.doctor import Doctor  # <doctor/>
from orders.features.ops.lookups import ShownRecords  # <ops/>
from orders.features.why import locked
from orders.features.why.locked import locked_rows
from orders.order.domain import Order
from tests.kit.api import serving
from tests.kit.races import blocked
from tests.kit.shop import Shop, opened

ROWS: dict[str, Callable[[Order], sa.Select[Any]]] = {
    "its own row": lambda order: sa.select(unpaid_orders).filter_by(order_id=order.id),
    "the row of tea in stock_items": lambda _: sa.select(stock_items).filter_by(sku="tea"),
}


@pytest.fixture(autouse=True)
def _any_lock_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked, "LONG_MS", 0)


# <doctor>
@pytest.mark.parametrize("name", ROWS)
def test_who_holds_a_row_is_found_while_it_is_locked(shop: Shop, name: str) -> None:
    shop.stock("cup")
    order, later, other = shop.place(tea=1, cup=1), shop.place(), shop.place(cup=1)
    shop.expire_in(-1, order, other)
    with shop.engine.begin() as stranger:
        pid = stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        since = stranger.execute(sa.text("SELECT now()")).scalar_one()
        stranger.execute(ROWS[name](order).with_for_update())
        with reading(shop.engine) as connection:
            [found] = locked_rows(connection)
        assert (found.order_id, found.pid, found.since) == (order.id, pid, since)
        said = f"order {order.id} waits for {name}, which pid {pid} has locked since {since:%T} UTC"
        assert str(found).startswith(said)
        [finding] = [
            each for each in Doctor(shop.engine).examine() if each.check == "orders.locked"
        ]
        assert finding.summary == str(found)
    assert later.id not in said
    [finding] = [each for each in Doctor(shop.engine).examine() if each.check == "orders.locked"]
    assert finding.level == "ok"


# </doctor>


def test_who_waits_for_another_row_is_not_named(migrated_url: str) -> None:
    with opened(migrated_url, lock_timeout_seconds=60, statement_timeout_seconds=60) as shop:
        shop.stock()
        order = shop.place()
        shop.expire_in(-1, order)
        with ThreadPoolExecutor(1) as pool, shop.engine.begin() as stranger:
            stranger.execute(sa.select(stock_items).with_for_update())
            pid = stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            cancelled = pool.submit(shop.service.cancel, shop.client, order.id)
            wait_until(lambda: blocked(shop), "it to wait for the stock, with the order")
            with reading(shop.engine) as connection:
                assert [each.pid for each in locked_rows(connection)] == [pid]
            stranger.commit()
            cancelled.result()


def test_a_locked_row_is_no_outage_of_the_database(migrated_url: str) -> None:
    with opened(migrated_url, lock_timeout_seconds=0.1) as shop:
        shop.stock()
        with shop.engine.begin() as stranger:
            stranger.execute(sa.select(stock_items).with_for_update())
            with pytest.raises(RowLocked, match="A row stays locked"):
                shop.place()


# <ops>
@pytest.mark.parametrize("table", [unpaid_orders, stock_items], ids=str)
def test_the_page_looks_for_locked_rows(migrated_url: str, valkey: Valkey, table: sa.Table) -> None:
    with serving(migrated_url, valkey.url) as api:
        placed = api.place().get_json()
        services = api.services
        late = sa.text("UPDATE unpaid_orders SET expires_at = now() - interval '1 s'")
        with services.engine.begin() as connection:
            connection.execute(late)
        with services.engine.begin() as stranger:
            stranger.execute(sa.select(table).with_for_update())
            [shown] = ShownRecords(services.watching, services.hooks).state()["locked"]
        assert ShownRecords(services.watching, services.hooks).state()["locked"] == []
    assert shown.startswith(f"order {placed['id']} waits for ")


# </ops>
