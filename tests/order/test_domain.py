"""The rules of orders, without a database."""

from datetime import UTC, datetime, timedelta

import pytest

from orders.db.ids import is_uuid
from orders.errors import OutOfStock, TimeoutOutOfRange
from orders.order.domain import Item, Order, OrderStatus, Timeouts

NOW = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
ORDER = Order(
    id="018e0000-0000-7000-8000-000000000000",
    status=OrderStatus.UNPAID,
    currency="EUR",
    total_minor=750,
    items=(Item("tea", 3, 250),),
    created_at=NOW,
    expires_at=NOW + timedelta(minutes=30),
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "tea",
        ORDER.id.upper(),
        ORDER.id.replace("-", ""),
        f"{{{ORDER.id}}}",
        f"urn:uuid:{ORDER.id}",
        f" {ORDER.id}",
        f"{ORDER.id}\n",
        ORDER.id[:-1],
        ORDER.id[:-1] + "\u0661",
        ORDER.id[:-1] + "\0",
    ],
)
def test_an_order_id_is_written_in_one_way_only(text: str) -> None:
    assert is_uuid(ORDER.id)
    assert not is_uuid(text)


def test_a_timeout_is_the_default_or_asked_within_bounds() -> None:
    timeouts = Timeouts(default_seconds=1800, min_seconds=1, max_seconds=86_400)
    assert timeouts.ms(None) == 1_800_000
    assert timeouts.ms(1) == 1000
    assert timeouts.ms(86_400) == 86_400_000
    for seconds in (0, -1, 86_401, 10**400, float("nan"), float("inf")):
        with pytest.raises(TimeoutOutOfRange, match="1 to 86400 s"):
            timeouts.ms(seconds)


# -- errors --------------------------------------------------------------------------------


def test_an_error_is_its_docstring_and_its_code_its_name() -> None:
    error = OutOfStock("tea", sku="tea", available=7)
    assert str(error) == "There is too little stock. tea"
    assert str(OutOfStock()) == "There is too little stock."
    assert error.code == "out_of_stock"
    assert error.facts == {"sku": "tea", "available": 7}
