"""Whatever is done with orders, in whatever order, stock is conserved and endings are final."""

from contextlib import ExitStack

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from orders.errors import (
    AlreadyPaid,
    KeyReused,
    OutOfStock,
    PreconditionFailed,
    ReferenceReused,
    StockReserved,
)
from orders.order.domain import Order
from orders.sql.tables import metadata
from orders.stock.domain import Expected
from tests.conftest import Shop, opened
from tests.expiring import expire_now
from tests.length import rounds

SKUS = ["cup", "tea"]
skus = st.sampled_from(SKUS)
few = st.integers(1, 6)
references = st.sampled_from(["r-1", "r-2", "r-3", "r-4"])
adjustment_keys = st.sampled_from(["a-1", "a-2", "a-3", "a-4"])


class OrdersMachine(RuleBasedStateMachine):
    """The service against what a few dictionaries say it must do."""

    #: Of the database that every example finds empty.
    url: str
    orders = Bundle[Order]("orders")

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(sa.delete(table))
        self.shop: Shop = self.stack.enter_context(opened(self.url))
        self.on_hand = dict.fromkeys(SKUS, 10)
        self.reserved = dict.fromkeys(SKUS, 0)
        self.statuses: dict[str, str] = {}
        self.overdue: set[str] = set()
        self.references: dict[str, tuple[str, int]] = {}
        self.noted: set[str] = set()
        self.keys: dict[str, tuple[str, int]] = {}
        self.read: dict[str, tuple[str, int]] = {}

    def teardown(self) -> None:
        self.stack.close()

    @initialize()
    def stock(self) -> None:
        for sku in SKUS:
            self.shop.stock(sku, self.on_hand[sku])

    @rule(target=orders, basket=st.dictionaries(skus, few, min_size=1))
    def place(self, basket: dict[str, int]) -> MultipleResults[Order] | Order:
        if any(quantity > self.on_hand[s] - self.reserved[s] for s, quantity in basket.items()):
            with pytest.raises(OutOfStock):
                self.shop.basket(basket)
            return multiple()
        order = self.shop.basket(basket)
        for sku, quantity in basket.items():
            self.reserved[sku] += quantity
        self.statuses[order.id] = "unpaid"
        return order

    @rule(order=orders, reference=references, wrong_by=st.sampled_from([0, 0, 1]))
    def pay(self, order: Order, reference: str, wrong_by: int) -> None:
        asked = (order.id, order.total_minor + wrong_by)
        known = self.references.setdefault(reference, asked)
        if known != asked:
            with pytest.raises(ReferenceReused):
                self.shop.pay(order, reference, amount_minor=asked[1])
            return
        paid = self.shop.pay(order, reference, amount_minor=asked[1])
        assert paid.replayed == (reference in self.noted)
        if paid.replayed:
            return
        self.noted.add(reference)
        applies = self.statuses[order.id] == "unpaid" and not wrong_by
        assert paid.payment.status == ("applied" if applies else "refund_due")
        if applies:
            self.end(order, "paid")
            for item in order.items:
                self.on_hand[item.sku] -= item.quantity

    @rule(order=orders)
    def cancel(self, order: Order) -> None:
        if self.statuses[order.id] == "paid":
            with pytest.raises(AlreadyPaid):
                self.shop.service.cancel(self.shop.client, order.id)
            return
        self.shop.service.cancel(self.shop.client, order.id)
        if self.statuses[order.id] == "unpaid":
            self.end(order, "cancelled")

    @rule(order=orders)
    def let_the_deadline_pass(self, order: Order) -> None:
        self.shop.expire_in(-1, order)
        self.overdue.add(order.id)

    @rule(batch=st.lists(orders, max_size=4))
    def expire(self, batch: list[Order]) -> None:
        again = expire_now(self.shop.service, [order.id for order in batch])
        for order in batch:
            unpaid = self.statuses[order.id] == "unpaid"
            assert (order.id in again) == (unpaid and order.id not in self.overdue)
            if unpaid and order.id in self.overdue:
                self.end(order, "cancelled")

    @rule(sku=skus, on_hand=st.integers(0, 15))
    def set_stock(self, sku: str, on_hand: int) -> None:
        if on_hand < self.reserved[sku]:
            with pytest.raises(StockReserved):
                self.shop.stock(sku, on_hand)
            return
        self.shop.stock(sku, on_hand)
        self.on_hand[sku] = on_hand

    @rule(sku=skus, delta=st.integers(-8, 8).filter(bool), key=adjustment_keys)
    def adjust(self, sku: str, delta: int, key: str) -> None:
        def adjust() -> bool:
            return self.shop.stock_service.adjust(
                sku, client_id=self.shop.client, key=key, delta=delta, reason="counted"
            ).replayed

        known = self.keys.get(key)
        if known is not None:
            if known == (sku, delta):
                assert adjust()
            else:
                with pytest.raises(KeyReused):
                    adjust()
        elif self.on_hand[sku] + delta < self.reserved[sku]:
            with pytest.raises(StockReserved):
                adjust()
        else:
            assert not adjust()
            self.keys[key] = (sku, delta)
            self.on_hand[sku] += delta

    @rule(sku=skus, on_hand=st.integers(0, 15))
    def read_stock(self, sku: str, on_hand: int) -> None:
        """And have somebody set it later."""
        self.read[sku] = (self.shop.stock_service.get(sku).version, on_hand)

    @rule(sku=skus)
    def set_what_was_read(self, sku: str) -> None:
        if sku not in self.read:
            return
        version, on_hand = self.read[sku]
        expected = Expected(frozenset([version]), exists=True)

        def put() -> None:
            self.shop.stock_service.set(
                *(sku,), on_hand=on_hand, price_minor=250, currency="EUR", expected=expected
            )

        if version != f"{self.on_hand[sku]}-250-EUR":
            with pytest.raises(PreconditionFailed):
                put()
        elif on_hand < self.reserved[sku]:
            with pytest.raises(StockReserved):
                put()
        else:
            put()
            self.on_hand[sku] = on_hand

    def end(self, order: Order, status: str) -> None:
        assert self.statuses[order.id] == "unpaid"
        self.statuses[order.id] = status
        for item in order.items:
            self.reserved[item.sku] -= item.quantity

    @invariant()
    def stock_is_conserved_and_endings_are_final(self) -> None:
        for sku in SKUS:
            assert self.shop.shelf(sku) == (self.on_hand[sku], self.reserved[sku])
        found = self.shop.service.orders(self.shop.client, page_size=1000)
        assert {order.id: str(order.status) for order in found} == self.statuses
        self.shop.check()


@pytest.fixture(scope="module", autouse=True)
def database(shared_url: str) -> None:
    OrdersMachine.url = shared_url


TestOrders = OrdersMachine.TestCase
TestOrders.settings = settings(
    max_examples=rounds(4, 40),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
