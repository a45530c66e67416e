"""The rules of orders, without a database."""

from datetime import UTC, datetime, timedelta

import pytest

from orders import errors
from orders.errors import (
    MixedCurrencies,
    OrderError,
    OutOfStock,
    TimeoutOutOfRange,
    TotalTooLarge,
    UnknownSku,
)
from orders.http.problems import RETRY_AFTER, STATUS
from orders.order.domain import Item, Order, OrderStatus, check_basket, total_minor
from orders.order.service import Timeouts
from orders.sql.ids import is_order_id
from orders.stock.domain import MAX_MINOR, StockItem

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


def test_a_total_is_the_sum_of_its_items() -> None:
    assert total_minor([Item("tea", 3, 250), Item("cup", 1, 999)]) == 1749
    assert total_minor([Item("gift", 5, 0)]) == 0


def test_a_total_is_exact_up_to_the_largest_amount_and_refused_beyond() -> None:
    assert total_minor([Item("gold", 1, MAX_MINOR)]) == MAX_MINOR
    with pytest.raises(TotalTooLarge, match=str(MAX_MINOR)):
        total_minor([Item("gold", 1, MAX_MINOR), Item("tea", 1, 1)])
    assert float(MAX_MINOR) == MAX_MINOR
    assert float(MAX_MINOR + 2) != MAX_MINOR + 2


SHELF = {
    "tea": StockItem("tea", 10, 3, 250, "EUR"),
    "cup": StockItem("cup", 5, 0, 999, "EUR"),
    "gum": StockItem("gum", 5, 0, 1, "USD"),
    "gold": StockItem("gold", 5, 0, MAX_MINOR, "EUR"),
}


@pytest.mark.parametrize(
    ("quantities", "error"),
    [
        ({"tea": 8, "unheard-of": 1}, OutOfStock),
        ({"tea": 7, "unheard-of": 1}, UnknownSku),
        ({"tea": 1, "cup": 1, "gum": 1}, MixedCurrencies),
        ({"gold": 1, "tea": 1}, TotalTooLarge),
    ],
)
def test_a_basket_is_refused_for_the_first_reason_there_is(
    quantities: dict[str, int], error: type[OrderError]
) -> None:
    with pytest.raises(error):
        check_basket(quantities, SHELF)


def test_a_basket_that_can_be_had_is_not_refused() -> None:
    check_basket({"tea": 7, "cup": 5}, SHELF)


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
    assert is_order_id(ORDER.id)
    assert not is_order_id(text)


def test_a_timeout_is_the_default_or_what_was_asked_within_bounds() -> None:
    timeouts = Timeouts(default_seconds=1800, min_seconds=1, max_seconds=86_400)
    assert timeouts.ms(None) == 1_800_000
    assert timeouts.ms(1) == 1000
    assert timeouts.ms(86_400) == 86_400_000
    for seconds in (0, -1, 86_401, 10**400, float("nan"), float("inf")):
        with pytest.raises(TimeoutOutOfRange, match="1 to 86400 s"):
            timeouts.ms(seconds)


# -- errors --------------------------------------------------------------------------------


def test_an_errors_docstring_is_its_message_and_its_name_is_its_code() -> None:
    error = OutOfStock("tea", sku="tea", available=7)
    assert str(error) == "There is too little stock. tea"
    assert str(OutOfStock()) == "There is too little stock."
    assert error.code == "out_of_stock"
    assert error.facts == {"sku": "tea", "available": 7}


def test_every_error_that_a_request_can_meet_has_a_status() -> None:
    every = {
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, OrderError) and error is not OrderError
    }
    # Only the command line manages keys and endpoints, and without settings there is no service.
    elsewhere = {errors.KeyNotFound, errors.EndpointNotFound, errors.SettingsInvalid}
    assert every - elsewhere == STATUS.keys()
    assert len({error.code for error in every}) == len(every)
    assert all(error.__doc__ for error in every)


def test_what_time_mends_says_when_to_come_back() -> None:
    assert RETRY_AFTER[errors.KeyInFlight] == 1
    assert RETRY_AFTER[errors.StorageUnavailable] == 2
    assert {error for error, status in STATUS.items() if status == 503} <= RETRY_AFTER.keys()
