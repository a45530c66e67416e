"""flask --app orders.app keys ... and stock ..."""

from collections.abc import Iterator

import pytest
from click.testing import Result

from tests.conftest import Api


@pytest.fixture
def bare(migrated_url: str) -> Iterator[Api]:
    """The application on a migrated database, before there is any key."""
    made = Api(migrated_url, "redis://127.0.0.1:1/0")
    yield made
    made.close()


def run(api: Api, *args: str) -> Result:
    result: Result = api.app.test_cli_runner().invoke(args=list(args))
    return result


def test_a_key_is_printed_alone_and_works_for_its_scopes(bare: Api) -> None:
    result = run(bare, "keys", "create", "shop", "--scope", "orders", "--scope", "ops")
    assert result.exit_code == 0
    key = result.stdout.removesuffix("\n")
    assert "\n" not in key
    client = bare.services.orders.authenticate(key)
    assert client is not None
    assert (client.name, sorted(client.scopes)) == ("shop", ["ops", "orders"])
    bare.keys["customer"] = key
    assert bare.send("GET", "/v1/orders").status_code == 200
    assert bare.send("PUT", "/v1/stock/tea", {}).status_code == 422


def test_a_name_is_taken_once(bare: Api) -> None:
    assert run(bare, "keys", "create", "shop", "--scope", "ops").exit_code == 0
    again = run(bare, "keys", "create", "shop", "--scope", "ops")
    assert again.exit_code == 1
    assert "There is a client of that name." in again.stderr
    assert again.stdout == ""


def test_a_key_without_a_known_scope_is_not_made(bare: Api) -> None:
    assert run(bare, "keys", "create", "shop").exit_code == 2
    assert run(bare, "keys", "create", "shop", "--scope", "root").exit_code == 2


def test_stock_is_set_and_refused_as_over_http(bare: Api) -> None:
    tea = ("stock", "set", "tea", "--on-hand", "5", "--price-minor", "250", "--currency", "EUR")
    assert run(bare, *tea).stdout == "tea: 5 on hand, 0 reserved\n"
    item = bare.services.orders.stock("tea")
    assert (item.on_hand, item.price_minor, item.currency) == (5, 250, "EUR")
    for wrong in (
        ("stock", "set", "a b", *tea[3:]),
        (*tea[:3], "--on-hand", "-1", *tea[5:]),
        (*tea[:3], "--on-hand", str(2**31), *tea[5:]),
        (*tea[:-1], "eur"),
    ):
        assert run(bare, *wrong).exit_code in (1, 2)
    assert bare.services.orders.stock("tea") == item
