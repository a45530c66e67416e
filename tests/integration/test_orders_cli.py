"""flask --app orders.app keys ... and stock ..."""

import json
from collections.abc import Iterator
from uuid import uuid4

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
    client = bare.services.clients.authenticate(key)
    assert client is not None
    assert (client.name, sorted(client.scopes)) == ("shop", ["ops", "orders"])
    bare.keys["customer"] = key
    assert bare.send("GET", "/v1/orders").status_code == 200
    assert bare.send("PUT", "/v1/stock/tea", {}).status_code == 422


def create(api: Api, *options: str) -> str:
    result = run(api, "keys", "create", "shop", *options)
    assert result.exit_code == 0, result.output
    return str(result.stdout.strip())


def test_a_second_key_of_a_name_is_the_same_clients(bare: Api) -> None:
    # All before the order, whose check cannot be scheduled: what is logged of that goes to stdout too.
    bare.keys["ops"], bare.keys["customer"], second = (
        create(bare, "--scope", scope) for scope in ("ops", "orders", "orders")
    )
    bare.stock()
    order_id = json.loads(bare.place("first").get_data())["id"]
    bare.keys["customer"] = second
    assert bare.send("GET", f"/v1/orders/{order_id}").status_code == 200


def test_keys_are_listed_with_what_is_known_of_them(bare: Api) -> None:
    used = create(bare, "--scope", "orders", "--scope", "payments", "--days", "90")
    assert bare.services.clients.authenticate(used)
    other = run(bare, "keys", "create", "other", "--scope", "ops").stdout.strip()
    head, first, second = run(bare, "keys", "list").stdout.splitlines()
    assert head.split("  ")[0] == "ID"
    assert first.startswith(used.partition(".")[0])
    assert "orders payments" in first
    assert second.startswith(other.partition(".")[0])
    assert second.endswith("never")
    [_, alone] = run(bare, "keys", "list", "other").stdout.splitlines()
    assert alone.split() == second.split()
    [line] = run(bare, "keys", "list", "shop", "--json").stdout.splitlines()
    told = json.loads(line)
    assert (told["client"], sorted(told["scopes"])) == ("shop", ["orders", "payments"])
    assert told["last_used_at"]
    assert used.partition(".")[2] not in line


def test_a_key_is_revoked_and_rotated_by_its_id_or_pasted_whole(bare: Api) -> None:
    clients = bare.services.clients
    first = create(bare, "--scope", "orders")
    second = run(bare, "keys", "rotate", first, "--hours", "1").stdout.strip()
    assert clients.authenticate(first) == clients.authenticate(second)
    revoked = run(bare, "keys", "revoke", second.partition(".")[0])
    assert revoked.stdout == f"{second.partition('.')[0]} of shop is revoked\n"
    assert clients.authenticate(second) is None
    assert clients.authenticate(first)
    assert "expired" in run(bare, "keys", "list").stdout
    for unknown in ("nonsense", str(uuid4())):
        refused = run(bare, "keys", "revoke", unknown)
        assert refused.exit_code == 1
        assert "There is no such key." in refused.stderr


def test_a_key_without_a_known_scope_is_not_made(bare: Api) -> None:
    assert run(bare, "keys", "create", "shop").exit_code == 2
    assert run(bare, "keys", "create", "shop", "--scope", "root").exit_code == 2


def test_stock_is_set_and_refused_as_over_http(bare: Api) -> None:
    tea = ("stock", "set", "tea", "--on-hand", "5", "--price-minor", "250", "--currency", "EUR")
    assert run(bare, *tea).stdout == "tea: 5 on hand, 0 reserved\n"
    item = bare.services.stock.get("tea")
    assert (item.on_hand, item.price_minor, item.currency) == (5, 250, "EUR")
    for wrong in (
        ("stock", "set", "a b", *tea[3:]),
        (*tea[:3], "--on-hand", "-1", *tea[5:]),
        (*tea[:3], "--on-hand", str(2**31), *tea[5:]),
        (*tea[:-1], "eur"),
    ):
        assert run(bare, *wrong).exit_code in (1, 2)
    assert bare.services.stock.get("tea") == item
