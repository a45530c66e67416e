"""flask --app orders.app keys ... and stock ..., and a feature's."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from orders.clients.domain import parted
from orders.db.acting import KEY_ID
from orders.db.tables import payment_entries, unpaid_orders
from orders.errors import Unauthorized
from tests.kit.api import Api, create, run
from tests.kit.expiring import expire_now
from tests.kit.length import LONG
from tests.kit.moments import now


def test_a_key_is_printed_alone_and_works_for_its_scopes(bare: Api) -> None:
    result = run(bare, "keys", "create", "shop", "--scope", "orders", "--scope", "ops")
    assert result.exit_code == 0
    key = result.stdout.removesuffix("\n")
    assert "\n" not in key
    assert result.stderr == f"Its id is {parted(key)[0]}.\n"
    client = bare.services.clients.authenticate(key)
    assert (client.name, sorted(client.scopes)) == ("shop", ["ops", "orders"])
    bare.keys["customer"] = key
    assert bare.send("GET", "/v1/orders").status_code == 200
    assert bare.send("PUT", "/v1/stock/tea", {}).status_code == 422


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
    assert first.startswith(parted(used)[0])
    assert "orders payments" in first
    assert second.startswith(parted(other)[0])
    assert second.endswith("never")
    [_, alone] = run(bare, "keys", "list", "other").stdout.splitlines()
    assert alone.split() == second.split()
    [line] = run(bare, "keys", "list", "shop", "--json").stdout.splitlines()
    told = json.loads(line)
    assert (told["client"], sorted(told["scopes"])) == ("shop", ["orders", "payments"])
    assert told["last_used_at"]
    assert used.partition(".")[2] not in line


@pytest.mark.parametrize(
    "command",
    [
        "keys",
        "providers",  # <providers/>
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_a_list_of_an_unknown_client_says_that_there_is_none(
    bare: Api, command: str, options: tuple[str, ...]
) -> None:
    refused = run(bare, command, "list", "nobody", *options)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "Error: There is no client of that name.\n"


def test_a_list_that_cannot_be_printed_ends_with_a_sentence(
    bare: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("worker.console.click.echo", full)
    assert run(bare, "keys", "list").stderr == "Error: [Errno 28] No space left on device\n"


def test_a_key_is_revoked_and_rotated_by_its_id_or_pasted_whole(bare: Api) -> None:
    clients = bare.services.clients
    first = create(bare, "--scope", "orders")
    second = run(bare, "keys", "rotate", first, "--hours", "1").stdout.strip()
    assert clients.authenticate(first) == clients.authenticate(second)
    revoked = run(bare, "keys", "revoke", parted(second)[0])
    assert revoked.stdout == f"{parted(second)[0]} of shop is revoked\n"
    with pytest.raises(Unauthorized):
        clients.authenticate(second)
    assert clients.authenticate(first)
    assert "expired" in run(bare, "keys", "list").stdout
    refused = run(bare, "keys", "revoke", str(uuid4()))
    assert refused.exit_code == 1
    assert "There is no such key." in refused.stderr
    pasted = run(bare, "keys", "rotate", "ID")
    assert pasted.exit_code == 2
    assert "'ID' is not a key's id: keys list shows them" in pasted.stderr
    assert run(bare, "keys", "revoke", f"{first}\n").exit_code == 0


def test_a_key_is_not_made_for_a_name_of_several_lines(bare: Api) -> None:
    refused = run(bare, "keys", "create", "shop\nkiosk", "--scope", "orders")
    assert refused.exit_code == 2
    assert "in one line" in refused.stderr


def test_a_key_without_a_known_scope_is_not_made(bare: Api) -> None:
    assert run(bare, "keys", "create", "shop").exit_code == 2
    assert run(bare, "keys", "create", "shop", "--scope", "root").exit_code == 2


def test_stock_is_set_and_refused_as_over_http(bare: Api) -> None:
    tea = ("stock", "set", "tea", "--on-hand", "5", "--price-minor", "250", "--currency", "EUR")
    assert run(bare, *tea).stdout == "tea: 5 on hand, 0 reserved\n"
    item = bare.services.stock.get("tea")
    for given, seconds in (
        ([*tea, "--timeout", "5m"], 300),
        (tea, 300),
        ([*tea[:3], "--timeout", "1h30m"], 5400),
        ([*tea[:3], "--timeout", "0s"], None),
    ):
        assert run(bare, *given).exit_code == 0
        assert bare.services.stock.get("tea") == replace(item, timeout_seconds=seconds)
    assert (item.on_hand, item.price_minor, item.currency) == (5, 250, "EUR")
    for wrong in (
        ("stock", "set", "a b", *tea[3:]),
        (*tea[:3], "--on-hand", "-1", *tea[5:]),
        (*tea[:3], "--on-hand", str(2**31), *tea[5:]),
        (*tea[:-1], "eur"),
        *(tea[:-2], tea[:3], (*tea[:-2], "--timeout", "5m"), (*tea[:3], "--timeout", "500ms")),
        ("stock", "set", "coffee", "--timeout", "5m"),
    ):
        assert run(bare, *wrong).exit_code in (1, 2)
    assert bare.services.stock.get("tea") == item


def test_what_is_done_carries_the_id_of_its_key(api: Api) -> None:
    """Two keys of one client, and nobody's."""
    clients = api.services.clients
    name = clients.recall(api.keys["customer"]) or clients.authenticate(api.keys["customer"])
    assert name is not None
    api.keys["second"] = clients.create_key(name.name, ["payments"])
    ids = {name: parted(key)[0] for name, key in api.keys.items()}
    paid, expired = (api.place().get_json()["id"] for _ in range(2))
    due = api.pay(paid, amount_minor=1).get_json()
    api.send("POST", f"/v1/payments/{due['id']}/refund", {"reference": "re-1"}, key="second")
    with api.services.engine.begin() as connection:
        connection.execute(sa.update(unpaid_orders).values(expires_at=now()))
    KEY_ID.set(None)
    assert expire_now(api.services.orders, [paid, expired]) == {}

    def keys_of(order_id: str) -> list[str | None]:
        page: Any = api.send("GET", f"/v1/orders/{order_id}/events").json
        return [each["key_id"] for each in page["data"]]

    assert keys_of(expired) == [ids["customer"], None]
    assert keys_of(paid) == [ids["customer"], ids["customer"], ids["second"], None]
    # <feed>
    feed: Any = api.send("GET", "/v1/events").json
    assert {each["key_id"] for each in feed["data"]} == {ids["customer"], ids["second"], None}
    # </feed>
    with api.services.engine.begin() as connection:
        assert connection.scalar(sa.select(payment_entries.c.key_id)) == ids["second"]
    made = api.send(
        "POST",
        "/v1/stock/tea/adjustments",
        {"delta": 1, "reason": "found"},
        key="ops",
        headers={"Idempotency-Key": "one"},
    )
    assert made.get_json()["key_id"] == ids["ops"]


def test_keys_have_labels_and_a_prefix_and_old_ones_work(bare: Api) -> None:
    key = run(bare, "keys", "create", "shop", "--scope", "ops", "--label", "Anna").stdout.strip()
    assert key.startswith("otk_")
    clients = bare.services.clients
    for same in (key, key.removeprefix("otk_")):
        assert clients.authenticate(same)
    successor = run(bare, "keys", "rotate", key).stdout.strip()
    assert clients.authenticate(successor)
    assert [each.label for each in clients.list_keys("shop")] == ["Anna", "Anna"]
    assert "Anna" in run(bare, "keys", "list").stdout
    for wrong in ("", "a\nb", "x" * 101):
        refused = run(bare, "keys", "create", "shop", "--scope", "ops", "--label", wrong or "\x07")
        assert refused.exit_code == 2


def test_help_needs_no_settings() -> None:
    env = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    for command in (["stock", "set"], []) if LONG else ([],):
        arguments = [sys.executable, "-m", "orders", *command, "--help"]
        told = subprocess.run(arguments, env=env, capture_output=True, text=True, check=True)
        assert (told.stdout[:7], told.stderr) == ("Usage: ", "")
