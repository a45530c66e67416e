"""Two clients see and disturb nothing of each other, on any route of docs/openapi.json.

A new route is in here by being documented. One whose request cannot be built fails: its ids need an
entry in `MAKERS`, and what its example needs beyond them one in `BODIES`.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa
from werkzeug.test import TestResponse

from devtools.valkey import Valkey
from orders.db.base import metadata
from orders.db.tables import api_keys
from orders.features.providers.service import Providers  # <providers/>
from orders.features.signing.signatures import signed  # <providers/>
from orders.http.schemas.types import rfc3339
from tests.kit.api import Api, serving
from tests.openapi.operations import OPERATIONS, Operation, resolved

MUG = {"sku": "mug", "quantity": 2}


def make_order(api: Api, client: str) -> str:
    headers = {"Idempotency-Key": uuid4().hex}
    made = api.send("POST", "/v1/orders", {"items": [MUG]}, key=client, headers=headers)
    return str(json.loads(made.get_data())["id"])


def make_payment(api: Api, client: str) -> str:
    """A payment that is due back."""
    body = {"provider": "bank", "reference": uuid4().hex, "amount_minor": 1, "currency": "EUR"}
    path = f"/v1/orders/{make_order(api, client)}/payments"
    return str(json.loads(api.send("POST", path, body, key=client).get_data())["id"])


# <webhooks>
def make_webhook(api: Api, client: str) -> str:
    made = api.send("POST", "/v1/webhooks", {"url": "https://shop.example/hook"}, key=client)
    return str(json.loads(made.get_data())["id"])


def make_delivery(api: Api, client: str) -> str:
    path = f"/v1/webhooks/{make_webhook(api, client)}/deliveries"
    make_order(api, client)
    [first, *_] = json.loads(api.send("GET", path, key=client).get_data())["data"]
    return str(first["id"])


# </webhooks>
#: How a client comes by what such an id names.
MAKERS: dict[str, Callable[[Api, str], str]] = {
    "delivery_id": make_delivery,  # <webhooks/>
    "webhook_id": make_webhook,  # <webhooks/>
    "order_id": make_order,
    "payment_id": make_payment,
}
#: What is different from the example in the bodies of some operations, to be valid now.
BODIES: dict[str, Callable[[], dict[str, Any]]] = {
    "refund_payment": lambda: {"amount_minor": 1},
    "extend_order": lambda: {"expires_at": rfc3339(datetime.now(UTC) + timedelta(hours=1))},
}
#: The operations that take a signature in place of a key.
SIGNED = (
    "receive_webhook",  # <providers/>
)
#: What the shop has, for every client alike.
COMMON = {"sku"}


def scopes(operation: Operation) -> set[str]:
    return {
        scope
        for way in operation.said.get("security", [])
        for each in way.values()
        for scope in each
    }


def ids_in_path(operation: Operation) -> list[str]:
    return [name for name in re.findall(r"\{(\w+)\}", operation.path) if name not in COMMON]


def ids_in_body(operation: Operation) -> list[str]:
    """The fields of its body that name something by its id."""
    content = operation.said.get("requestBody", {}).get("content", {})
    found = []
    for each in content.values():
        fields = resolved(each["schema"]).get("properties", {})
        found += [name for name, schema in fields.items() if schema.get("format") == "uuid"]
    return found


#: The back office's keys see every client's things; what it alone may do is not here.
OF_CLIENTS = [
    operation
    for operation in OPERATIONS
    if "security" in operation.said and scopes(operation) != {"ops"}
]
ON_THINGS = [each for each in OF_CLIENTS if ids_in_path(each) or ids_in_body(each)]
LISTS = [each for each in OF_CLIENTS if each.method == "GET" and each not in ON_THINGS]


@pytest.fixture
def api(migrated_url: str, valkey: Valkey, redis_client: redis.Redis) -> Iterator[Api]:  # noqa: ARG001  empties it
    """The application, with two clients who may do everything that a client may."""
    with serving(migrated_url, valkey.url) as made:
        made.stock("mug", 1000, 1250)
        for name in ("customer", "other"):
            made.keys[name] = made.services.clients.create_key(name, ["orders", "payments"])
        yield made


def rows(api: Api) -> dict[str, list[Any]]:
    """Every row of every table, but for when keys were used."""
    with api.services.engine.begin() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for table in metadata.sorted_tables
            if table is not api_keys
        }


def request(api: Api, operation: Operation, client: str) -> Callable[[str], Any]:
    """A request on things of a client, to be sent by anybody."""
    ids = {}
    for name in {*ids_in_path(operation), *ids_in_body(operation)}:
        assert name in MAKERS, f"{operation.name}: MAKERS does not say how to make {name}"
        ids[name] = MAKERS[name](api, client)
    url = operation.url
    for name in ids_in_path(operation):
        placeholder = next(
            each["schema"]["examples"][0]
            for each in operation.said["parameters"]
            if each["name"] == name
        )
        url = url.replace(placeholder, ids[name], 1)
    body = operation.body and {
        **operation.body,
        **BODIES.get(operation.name, dict)(),
        **{name: ids[name] for name in ids_in_body(operation)},
    }

    def send(sender: str) -> Any:
        headers = operation.headers
        if "Idempotency-Key" in headers:
            headers["Idempotency-Key"] = uuid4().hex
        return api.send(operation.method, url, body, key=sender, headers=headers)

    return send


@pytest.mark.parametrize("operation", ON_THINGS, ids=lambda each: each.name)
def test_another_clients_thing_is_not_there(api: Api, operation: Operation) -> None:
    """404 for who does not own it, and nothing changes; the same request is its owner's to make."""
    send = request(api, operation, "customer")
    before = rows(api)
    refused = send("other")
    assert refused.status_code == 404, refused.get_data()
    assert refused.get_json()["code"].endswith("_not_found")
    assert rows(api) == before
    served = send("customer")
    assert served.status_code < 300, f"{operation.name}: not a valid request: {served.get_data()!r}"


# <providers>
def test_another_clients_provider_reports_nothing_of_ones_order(api: Api) -> None:
    """The one route with an id that takes no key. The endpoint is the client's, the order may not be."""
    [operation] = [each for each in OPERATIONS if each.name in SIGNED]
    order_id = make_order(api, "customer")
    before = {name: rows(api)[name] for name in ("orders", "payments", "order_events")}

    def report(client: str) -> TestResponse:
        endpoint, secret = api.services[Providers].add(client, "bank")
        data = {**operation.body["data"], "order_id": order_id}
        body = json.dumps({**operation.body, "data": data}).encode()
        path = operation.path.replace("{endpoint_id}", endpoint.id)
        headers = signed("m-1", body, [secret], now_seconds=time.time())
        return api.send(
            "POST", path, key=None, data=body, headers=headers, content_type="application/json"
        )

    assert report("other").status_code == 404
    assert {name: rows(api)[name] for name in before} == before
    assert report("customer").status_code == 200


# </providers>


@pytest.mark.parametrize("operation", LISTS, ids=lambda each: each.name)
def test_nothing_of_another_client_is_in_a_list(api: Api, operation: Operation) -> None:
    mine = {make(api, "customer") for make in MAKERS.values()}
    theirs = {make(api, "other") for make in MAKERS.values()}
    before = rows(api)
    for client, seen, unseen in (("customer", mine, theirs), ("other", theirs, mine)):
        response = api.send("GET", operation.url, key=client)
        assert response.status_code == 200
        text = response.get_data(as_text=True)
        assert not [each for each in unseen if each in text]
        if operation.name in SHOWING:
            assert [each for each in seen if each in text], "it lists nothing of one's own"
    assert rows(api) == before


#: The lists in which the things of `MAKERS` are.
SHOWING = {"list_orders", "list_payments", "list_webhooks"}


def test_every_route_of_clients_is_tested() -> None:
    """Or makes something new."""
    tested = {each.name for each in (*ON_THINGS, *LISTS)}
    assert {each.name for each in OF_CLIENTS} - tested == {
        "create_order",
        "create_webhook",  # <webhooks/>
    }


def test_every_route_without_a_key_is_of_nobody_or_signed() -> None:
    open_to_all = [each for each in OPERATIONS if "security" not in each.said]
    assert {each.name for each in open_to_all if "{" in each.path} == {*SIGNED}
