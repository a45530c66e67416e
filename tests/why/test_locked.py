"""Who has locked what cancellations may wait for is said, instead of that the database is down."""

import pytest
import sqlalchemy as sa

from devtools.valkey import Valkey
from orders.db.database import reading
from orders.db.tables import stock_items, unpaid_orders
from orders.errors import RowLocked
from orders.features.doctor.doctor import Doctor  # <doctor/>
from orders.features.why import locked
from orders.features.why.locked import Locker, lockers
from tests.kit.api import serving
from tests.kit.shop import Shop, opened
from tests.ops.page import Page  # <ops/>
from worker import Finding  # <doctor/>


@pytest.fixture(autouse=True)
def _any_lock_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked, "LONG_MS", 0)


@pytest.mark.parametrize("table", [unpaid_orders, stock_items], ids=str)
def test_who_holds_a_row_is_found_while_it_is_locked(shop: Shop, table: sa.Table) -> None:
    shop.place()
    with shop.engine.begin() as stranger:
        pid = stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        since = stranger.execute(sa.text("SELECT now()")).scalar_one()
        stranger.execute(sa.select(table).with_for_update())
        [found] = look(shop)
        assert (found.tables, found.pid, found.since) == (table.name, pid, since)
        assert str(found).startswith(f"pid {pid} has held locks on {table} since {since:%T} UTC")
        # <doctor>
        finding = examined(shop)
        assert (finding.level, finding.summary) == ("warning", str(found))
    assert examined(shop).level == "ok"
    # </doctor>


# <doctor>
def examined(shop: Shop) -> Finding:
    [finding] = [each for each in Doctor(shop.engine).examine() if each.check == "orders.locked"]
    return finding


# </doctor>


@pytest.mark.parametrize(
    "harmless",
    [
        "SELECT * FROM unpaid_orders, stock_items",
        "SELECT * FROM api_clients FOR SHARE",
        "LOCK unpaid_orders IN SHARE UPDATE EXCLUSIVE MODE",  # as VACUUM does
    ],
)
def test_who_holds_up_no_cancellation_is_not_named(shop: Shop, harmless: str) -> None:
    with shop.engine.begin() as stranger:
        stranger.exec_driver_sql(harmless)
        assert look(shop) == []


def look(shop: Shop) -> list[Locker]:
    with reading(shop.engine) as connection:
        return lockers(connection)


def test_a_locked_row_is_no_outage_of_the_database(migrated_url: str) -> None:
    with opened(migrated_url, lock_timeout_seconds=0.1) as shop:
        shop.stock()
        with shop.engine.begin() as stranger:
            stranger.execute(sa.select(stock_items).with_for_update())
            with pytest.raises(RowLocked, match="A row stays locked"):
                shop.place()


# <ops>
@pytest.mark.parametrize("table", [unpaid_orders, stock_items], ids=str)
def test_the_page_looks_for_locked_rows(
    migrated_url: str, valkey: Valkey, table: sa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.features.ops.routes.FRESH_SECONDS", 0.0)
    with serving(migrated_url, valkey.url) as api:
        api.place()
        services = api.services
        late = sa.text("UPDATE unpaid_orders SET expires_at = now() - interval '1 s'")
        with services.engine.begin() as connection:
            connection.execute(late)
        with services.engine.begin() as stranger:
            stranger.execute(sa.select(table).with_for_update())
            [shown] = Page(api).problems(".* has held locks on ")
        assert Page(api).problems(".* has held locks on ") == []
    assert (shown.level, shown.entry) == ("bad", "OrdersOverdue")
    assert f" has held locks on {table} since " in shown.text


# </ops>
