"""Stock that is set and adjusted while it is sold: conserved, and decided by what is locked."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from devtools.postgres import Postgres
from orders.db.ids import new_id
from orders.db.tables import stock_adjustments, stock_items
from orders.errors import (
    AlreadyPaid,
    KeyReused,
    OrderError,
    OutOfStock,
    PreconditionFailed,
    PreconditionRequired,
    StockReserved,
)
from orders.order.domain import Order
from orders.stock.domain import ANYTHING, Expected, StockItem
from orders.stock.service import Adjusted, StockService
from tests.kit.databases import upgrade
from tests.kit.expiring import expire_now
from tests.kit.races import together, waiting
from tests.kit.shop import Shop, opened

NO_VERSION = Expected([])
IS_NEW = Expected([], exists=False)


@pytest.fixture
def shop(migrated_url: str) -> Iterator[Shop]:
    """A shop that waits its turn for as long as it takes."""
    with opened(migrated_url, lock_timeout_seconds=60, statement_timeout_seconds=60) as made:
        yield made


def adjust(shop: Shop, delta: int, key: str = "", sku: str = "tea") -> Adjusted:
    return shop.stock_service.adjust(
        sku, client_id=shop.client, key=key or new_id(), delta=delta, reason="counted"
    )


def put(shop: Shop, on_hand: int, expected: Expected, sku: str = "tea") -> StockItem:
    return shop.stock_service.set(
        *(sku,), on_hand=on_hand, price_minor=250, currency="EUR", expected=expected
    ).item


def changes(shop: Shop, sku: str = "tea") -> list[tuple[int, int]]:
    """What each adjustment added, and what there was afterwards, oldest first."""
    query = sa.select(stock_adjustments).filter_by(sku=sku).order_by(stock_adjustments.c.id)
    with shop.engine.begin() as connection:
        return [(row.delta, row.on_hand) for row in connection.execute(query)]


def check(shop: Shop, *skus: str) -> None:
    """On hand is what all adjustments added, less what was sold; reserved is what orders hold."""
    shop.check(**{sku: sum(delta for delta, _ in changes(shop, sku)) for sku in skus or ("tea",)})


# -- one statement -------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Shop], object]] = {
    "set_stock": lambda shop: put(shop, 50, ANYTHING),
    "adjust": lambda shop: adjust(shop, -1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_change_of_stock_is_one_statement_in_autocommit(shop: Shop, name: str) -> None:
    shop.stock()
    seen: list[bool] = []

    def note(connection: sa.Connection, *_: Any) -> None:
        driver: Any = connection.connection.driver_connection
        seen.append(driver.autocommit)

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    OPERATIONS[name](shop)
    assert seen == [True]


# -- decided by what is locked -------------------------------------------------------------


def test_an_adjustment_adds_to_what_it_waited_for(shop: Shop) -> None:
    shop.stock("tea", 100)
    with waiting(shop, lambda: adjust(shop, -10)) as (other, found):
        other.execute(sa.update(stock_items).values(on_hand=90, reserved=80))
    assert (found[0].adjustment.on_hand, shop.shelf()) == (80, (80, 80))
    assert found[0].adjustment.at >= found[1], "its time was to begin with its stock"
    with waiting(shop, lambda: adjust(shop, -10)) as (other, found):
        other.execute(sa.update(stock_items).values(on_hand=89))
    assert isinstance(found[0], StockReserved)
    assert shop.shelf() == (89, 80)


def test_an_adjustment_may_take_what_was_released_meanwhile(shop: Shop) -> None:
    shop.stock("tea", 10)
    held = shop.place(tea=10)
    with waiting(shop, lambda: adjust(shop, -10)) as (other, found):
        shop.inside(other).cancel(shop.client, held.id)
    assert (found[0].adjustment.on_hand, shop.shelf()) == (0, (0, 0))


def test_what_is_set_is_compared_with_what_it_waited_for(shop: Shop) -> None:
    shop.stock("tea", 10)
    read = Expected([shop.stock_service.get("tea").version], exists=True)
    with waiting(shop, lambda: put(shop, 15, read)) as (other, found):
        other.execute(sa.update(stock_items).values(on_hand=6))
    assert isinstance(found[0], PreconditionFailed)
    with waiting(shop, lambda: put(shop, 6, NO_VERSION)) as (other, found):
        other.execute(sa.update(stock_items).values(on_hand=6, reserved=4))
    assert found[0] == StockItem("tea", 6, 4, 250, "EUR"), "what was wanted is there"
    with waiting(shop, lambda: put(shop, 6, NO_VERSION)) as (other, found):
        other.execute(sa.update(stock_items).values(on_hand=10))
    assert isinstance(found[0], PreconditionRequired)
    with waiting(shop, lambda: put(shop, 3, read)) as (other, found):
        other.execute(sa.update(stock_items).values(reserved=5))
    assert isinstance(found[0], StockReserved)
    with waiting(shop, lambda: put(shop, 7, read)) as (other, found):
        other.execute(sa.update(stock_items).values(reserved=6))
    assert found[0] == StockItem("tea", 7, 6, 250, "EUR")
    assert changes(shop) == [(10, 10), (-3, 7)]


@pytest.mark.parametrize(
    ("on_hand", "expected", "outcome"),
    [
        (5, NO_VERSION, StockItem("tea", 5, 0, 250, "EUR")),
        (6, NO_VERSION, PreconditionRequired),
        (5, IS_NEW, PreconditionFailed),
        (6, IS_NEW, PreconditionFailed),
        (8, ANYTHING, StockItem("tea", 8, 0, 250, "EUR")),
    ],
)
def test_who_creates_a_sku_second_finds_it_there(
    shop: Shop, on_hand: int, expected: Expected, outcome: Any
) -> None:
    with waiting(shop, lambda: put(shop, on_hand, expected)) as (other, found):
        StockService(other).set("tea", on_hand=5, price_minor=250, currency="EUR")
    if isinstance(outcome, StockItem):
        assert found[0] == outcome
    else:
        assert isinstance(found[0], outcome)
    assert changes(shop) == [(5, 5), (3, 8)][: 2 if on_hand == 8 else 1]


def test_a_twin_that_waits_replays_the_adjustment(shop: Shop) -> None:
    shop.stock()
    shop.stock("cup")
    same: dict[str, Any] = {"key": "one", "client_id": shop.client, "reason": "counted"}
    with waiting(shop, lambda: adjust(shop, -1, "one")) as (other, found):
        made = StockService(other).adjust("tea", delta=-1, **same)
    assert found[0] == Adjusted(made.adjustment, replayed=True)
    same["key"] = "two"
    with waiting(shop, lambda: adjust(shop, -1, "two", "cup")) as (other, found):
        StockService(other).adjust("tea", delta=-1, **same)
    assert isinstance(found[0], KeyReused)
    assert (shop.shelf(), shop.shelf("cup")) == ((98, 0), (100, 0))


def test_a_replay_waits_for_no_stock(shop: Shop) -> None:
    shop.stock()
    made = adjust(shop, -1, "one")
    with shop.engine.begin() as other:
        other.execute(sa.select(stock_items).with_for_update())
        assert adjust(shop, -1, "one") == Adjusted(made.adjustment, replayed=True)


def test_an_order_is_placed_for_what_an_adjustment_left(shop: Shop) -> None:
    shop.stock("tea", 10)
    change: dict[str, Any] = {"client_id": shop.client, "reason": "counted"}
    with waiting(shop, lambda: shop.place(tea=2)) as (other, found):
        StockService(other).adjust("tea", key="a", delta=-9, **change)
    assert isinstance(found[0], OutOfStock)
    with waiting(shop, lambda: shop.place(tea=2)) as (other, found):
        StockService(other).adjust("tea", key="b", delta=1, **change)
    assert found[0].status == "unpaid"
    assert shop.shelf() == (2, 2)


# -- races ---------------------------------------------------------------------------------


def test_stock_is_conserved_whatever_happens_to_it_at_once(shop: Shop) -> None:
    skus = ["a", "b", "c"]
    for sku in skus:
        shop.stock(sku, 60)

    ends: list[Callable[[Order], object]] = [
        shop.pay,
        lambda order: shop.service.cancel(shop.client, order.id),
        lambda order: expire_now(shop.service, [order.id]),
        lambda _: None,
    ]

    def order(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(25):
            with suppress(OutOfStock, AlreadyPaid):
                placed = shop.basket(dict.fromkeys(rng.sample(skus, 2), rng.randint(1, 4)))
                shop.expire_in(rng.choice((-1, 60_000)), placed)
                rng.choice(ends)(placed)

    def change(seed: int) -> int:
        rng, done = random.Random(seed), 0
        for _ in range(40):
            with suppress(StockReserved):
                adjust(shop, rng.choice((-5, -1, 2, 4)), sku=rng.choice(skus))
                done += 1
        return done

    def write(seed: int) -> int:
        rng, done = random.Random(seed), 0
        for _ in range(40):
            with suppress(StockReserved, PreconditionFailed):
                sku = rng.choice(skus)
                read = shop.stock_service.get(sku)
                expected = Expected([read.version], exists=True)
                put(shop, read.on_hand + rng.randint(1, 3), expected, sku)
                done += 1
        return done

    *_, changed, again, written, rewritten = together(
        lambda: order(1),
        lambda: order(2),
        lambda: order(3),
        lambda: change(4),
        lambda: change(5),
        lambda: write(6),
        lambda: write(7),
    )
    assert min(changed, again, written, rewritten) > 0
    assert sum(len(changes(shop, sku)) for sku in skus) == 3 + sum(
        (changed, again, written, rewritten)
    )
    check(shop, *skus)


def test_pieces_are_sold_or_removed_once_each(shop: Shop) -> None:
    shop.stock("tea", 37)

    def buy() -> int:
        return sum(succeeds(shop.place) for _ in range(10))

    def remove() -> int:
        return sum(succeeds(lambda: adjust(shop, -1)) for _ in range(10))

    done = together(buy, remove, buy, remove, buy, remove)
    assert sum(done) == 37
    assert sum(done[::2]) == shop.shelf()[1] == shop.shelf()[0]
    check(shop)


def succeeds(run: Callable[[], object]) -> bool:
    try:
        run()
    except OrderError as error:
        assert isinstance(error, (OutOfStock, StockReserved, PreconditionFailed))  # noqa: PT017
        return False
    return True


def test_one_key_sent_by_many_is_one_adjustment(shop: Shop) -> None:
    shop.stock("tea", 10)
    made = together(*[lambda: adjust(shop, -10, "same")] * 8)
    assert sorted(each.replayed for each in made) == [False] + [True] * 7
    assert len({each.adjustment for each in made}) == 1
    assert shop.shelf() == (0, 0)


def test_of_many_writers_of_one_version_one_wins(shop: Shop) -> None:
    created = together(*(lambda n=n: succeeds(lambda: put(shop, n, IS_NEW)) for n in range(8)))
    assert created.count(True) == 1
    read = Expected([shop.stock_service.get("tea").version], exists=True)
    written = together(*(lambda n=n: succeeds(lambda: put(shop, n, read)) for n in range(10, 18)))
    assert written.count(True) == 1
    check(shop)


# -- the order of the list -----------------------------------------------------------------

SKUS = ["a", "B", "b", "A", "_", "-", ".", "10", "9", "a-b", "ab", "a_b", "Z", "z", "a.b"]


def test_skus_are_listed_by_bytes_in_any_locale(postgres: Postgres) -> None:
    name = f"sorted_{new_id().replace('-', '')}"
    try:
        postgres.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'"
        )
    except Exception as error:  # noqa: BLE001  whatever it cannot
        pytest.skip(f"this PostgreSQL has no other order: {error}")
    try:
        upgrade(postgres.url(name))
        with opened(postgres.url(name)) as shop:
            for sku in SKUS:
                shop.stock(sku)
            with shop.engine.begin() as connection:
                plain = connection.scalars(sa.select(stock_items.c.sku).order_by("sku")).all()
            assert plain != sorted(SKUS)
            found = [item.sku for item in shop.stock_service.items(page_size=4)]
            while page := shop.stock_service.items(page_size=4, after=found[-1]):
                found += [item.sku for item in page]
            assert found == sorted(SKUS)
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
