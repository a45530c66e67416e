"""What another transaction's locks do: bounded waits, and nobody waits for a customer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.db.database import PING_SECONDS
from orders.db.tables import orders, stock_items, unpaid_orders
from orders.errors import KeyInFlight, StorageUnavailable
from orders.order.service import Placed
from tests.kit.clock import bound
from tests.kit.expiring import expire_now, swept
from tests.kit.shop import Shop, opened

#: Long enough for what waits for no lock, on a busy machine too.
LOCK_SECONDS = 1.0
FRESH = 60.0


@pytest.fixture
def hurried(migrated_url: str) -> Iterator[Shop]:
    """A shop that does not wait long for a lock."""
    with opened(migrated_url, lock_timeout_seconds=LOCK_SECONDS) as made:
        yield made


@contextmanager
def bounded() -> Iterator[None]:
    """What is in here gives up neither at once nor much later than the lock time-out."""
    began = time.monotonic()
    yield
    assert LOCK_SECONDS * 0.9 <= time.monotonic() - began < bound(LOCK_SECONDS + 2)


def test_an_order_that_is_being_paid_is_skipped(shop: Shop) -> None:
    placed = [shop.place() for _ in range(3)]
    shop.expire_in(-1, *placed)
    busy = placed[1]
    with shop.engine.begin() as payer:
        payer.execute(sa.delete(unpaid_orders).where(unpaid_orders.c.order_id == busy.id))
        again = expire_now(shop.service, [order.id for order in placed])
        assert [*again] == [busy.id]
        assert again[busy.id] <= 0
        payer.rollback()
    statuses = {order.id: order.status for order in shop.service.orders(shop.client, page_size=9)}
    assert statuses == {placed[0].id: "cancelled", busy.id: "unpaid", placed[2].id: "cancelled"}
    assert shop.shelf() == (100, 1)
    assert expire_now(shop.service, [busy.id]) == {}
    assert shop.shelf() == (100, 0)


def test_a_batch_waits_for_no_reader_and_no_new_payment(shop: Shop) -> None:
    """A foreign key's lock, which a payment takes first, is no reason to skip."""
    order = shop.place()
    shop.expire_in(-1, order)
    with shop.engine.begin() as other:
        other.execute(sa.select(orders).with_for_update(key_share=True, read=True))
        assert expire_now(shop.service, [order.id]) == {}


@pytest.mark.clock
def test_a_key_in_flight_is_a_conflict_after_a_bounded_wait(hurried: Shop) -> None:
    hurried.stock()
    hurried.stock("cup")

    def place() -> Placed:
        return hurried.service.place(hurried.new("one"))

    with hurried.engine.begin() as other:  # one of another version, which takes its time
        new = hurried.new("one", quantities={"cup": 1})
        order = hurried.inside(other).place(new).order
        with bounded(), pytest.raises(KeyInFlight):
            place()
    assert place() == Placed(order, replayed=True)
    assert hurried.shelf("tea") == (100, 0)


@pytest.mark.clock
def test_placing_waits_a_bounded_time_for_locked_stock(hurried: Shop) -> None:
    hurried.stock()
    with hurried.engine.begin() as other:
        other.execute(sa.select(stock_items).with_for_update())
        with bounded(), pytest.raises(StorageUnavailable):
            hurried.place()


@pytest.mark.clock
def test_a_payment_waits_a_bounded_time_for_a_locked_order(hurried: Shop) -> None:
    hurried.stock()
    order = hurried.place()
    before = hurried.tables()
    with hurried.engine.begin() as other:
        other.execute(sa.select(unpaid_orders).with_for_update())
        with bounded(), pytest.raises(StorageUnavailable):
            hurried.pay(order)
    assert hurried.tables() == before


@pytest.mark.clock
def test_a_statement_that_takes_too_long_is_an_outage(migrated_url: str) -> None:
    with opened(
        migrated_url, statement_timeout_seconds=LOCK_SECONDS, lock_timeout_seconds=LOCK_SECONDS
    ) as shop:
        shop.stock()
        with shop.engine.begin() as connection:
            connection.execute(
                sa.text(
                    "CREATE FUNCTION crawl() RETURNS trigger LANGUAGE plpgsql"
                    " AS $$ BEGIN PERFORM pg_sleep(30); RETURN NEW; END $$"
                )
            )
            connection.execute(
                sa.text(
                    "CREATE TRIGGER crawl BEFORE INSERT ON orders"
                    " FOR EACH ROW EXECUTE FUNCTION crawl()"
                )
            )
        before = shop.tables()
        with bounded(), pytest.raises(StorageUnavailable):
            shop.place()
        assert shop.tables() == before


def test_a_sweep_works_on_the_smallest_pool(migrated_url: str) -> None:
    """It holds no connection while a page of it is expired."""
    with opened(migrated_url, database_pool_size=1) as shop:
        shop.stock()
        placed = [shop.place() for _ in range(3)]
        shop.expire_in(-1, *placed)
        for page in swept(shop.engine, None, 0, 1):
            assert expire_now(shop.service, [order.id for order in page]) == {}
        assert shop.shelf() == (100, 0)


# -- connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [True, False])
def test_a_fresh_connection_is_pinged_only_after_a_hang_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> None:
    connection: Any = shop.engine.raw_connection()
    driver = connection.driver_connection
    pings: list[float] = []
    plain_wait = driver.wait

    def wait(*args: Any) -> Any:
        pings.append(driver.patience_seconds)
        return plain_wait(*args)

    # Longer than a busy machine takes from the query to the ping.
    monkeypatch.setattr("orders.db.database.FRESH_SECONDS", FRESH)
    driver.autocommit = reads  # as a look leaves it, or a change
    driver.execute("SELECT 1")
    driver.rollback()
    monkeypatch.setattr(driver, "wait", wait)
    assert shop.engine.dialect.do_ping(driver)
    assert pings == []

    driver.answered_at -= FRESH
    assert shop.engine.dialect.do_ping(driver)
    assert set(pings) == {PING_SECONDS}
    assert driver.autocommit == reads

    with shop.engine.begin() as other:
        other.execute(sa.select(sa.func.pg_terminate_backend(driver.info.backend_pid)))
    wait_until(lambda: not driver.is_fresh(), "the server's end to be seen")
    with pytest.raises(psycopg.OperationalError):
        shop.engine.dialect.do_ping(driver)
    connection.invalidate()
