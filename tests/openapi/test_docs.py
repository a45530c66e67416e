"""The documentation describes every route, and works without the internet."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from devtools.processes import free_port
from tests.kit.api import Api


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The application with nothing behind it."""
    gone = f"127.0.0.1:{free_port()}"
    made = Api(f"postgresql+psycopg://nobody@{gone}/none", f"redis://{gone}/0")
    yield made
    made.close()


@pytest.fixture(scope="module")
def document(api: Api) -> Any:
    response = api.send("GET", "/openapi.json", key=None)
    assert (response.status_code, response.content_type) == (200, "application/json")
    return json.loads(response.get_data())


def operations(document: Any) -> dict[tuple[str, str], Any]:
    return {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def test_the_document_is_openapi_3_1_and_lists_every_route(api: Api, document: Any) -> None:
    assert document["openapi"].startswith("3.1.")
    routes = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in api.app.url_map.iter_rules()
        if rule.rule.startswith(("/v1", "/healthz", "/readyz"))
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert len(routes) >= 10
    assert routes <= operations(document).keys()


def test_the_document_names_no_host_that_a_request_named(api: Api) -> None:
    """Else whoever asks first decides where everybody's keys are sent."""
    document = api.send("GET", "/openapi.json", key=None, headers={"Host": "evil.example"})
    assert "evil.example" not in document.get_data(as_text=True)
    assert "servers" not in json.loads(document.get_data())


def test_the_document_is_serialized_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    first = api.send("GET", "/openapi.json", key=None)
    monkeypatch.setattr("orders.features.openapi.feature.document", pytest.fail)
    again = api.send("GET", "/openapi.json", key=None)
    assert again.get_data() == first.get_data()


def test_every_route_but_health_names_its_security(document: Any) -> None:
    [scheme] = document["components"]["securitySchemes"].items()
    name, definition = scheme
    assert (definition["type"], definition["scheme"].lower()) == ("http", "bearer")
    scopes = {}
    for (method, path), operation in operations(document).items():
        if path == "/v1/providers/{endpoint_id}/webhook":  # by its signature
            assert "security" not in operation
            assert "401" in operation["responses"]
            signature = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
            assert signature == {"webhook-id", "webhook-timestamp", "webhook-signature"}
        elif path.startswith("/v1"):
            scopes[method, path] = [each for way in operation["security"] for each in way[name]]
            assert "401" in operation["responses"]
        else:
            assert "security" not in operation
    assert scopes["POST", "/v1/orders"] == ["orders"]
    assert scopes["PUT", "/v1/stock/{sku}"] == ["ops"]
    assert scopes["GET", "/v1/stock/{sku}"] == []


def test_bodies_and_headers_are_described(document: Any) -> None:
    create = operations(document)["POST", "/v1/orders"]
    [parameter] = create["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == (
        "Idempotency-Key",
        "header",
        True,
    )
    pay = operations(document)["POST", "/v1/orders/{order_id}/payments"]
    assert {"201", "202", "401", "404", "422"} <= pay["responses"].keys()
    assert document["components"]["schemas"]["OrderIn"]["additionalProperties"] is False


def test_every_reference_in_the_document_leads_somewhere(document: Any) -> None:
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)))
    assert references
    for reference in references:
        place = document
        for step in reference.split("/"):
            place = place[step]
        assert place


def test_the_page_loads_only_what_this_server_serves(api: Api) -> None:
    with api.send("GET", "/docs", key=None) as page:
        assert page.status_code == 200
        html = page.get_data(as_text=True)
    loaded = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert any(path.endswith(".js") for path in loaded)
    assert any(path.endswith(".css") for path in loaded)
    for path in loaded:
        assert path.startswith("/")
        assert not path.startswith("//")
        with api.send("GET", path, key=None) as asset:
            assert asset.status_code == 200
            assert len(asset.get_data()) > 100


def test_errors_that_operations_leave_out_are_described_once(api: Api, document: Any) -> None:
    with api.send("GET", "/docs/page/page.css", key=None) as page:
        style = page.get_data(as_text=True)
    hidden = {*re.findall(r'data-code="(\d+)"', style)}
    assert {"401", "500"} <= hidden
    rows = re.findall(
        r"^\| ([\d, ]+) \| (.*?) \|", document["info"]["description"], flags=re.MULTILINE
    )
    described = {status: codes for statuses, codes in rows for status in statuses.split(", ")}
    for (_, path), operation in operations(document).items():
        for status in hidden & operation["responses"].keys() if path != "/readyz" else ():
            response = operation["responses"][status]
            if "$ref" in response:
                response = document["components"]["responses"][response["$ref"].split("/")[-1]]
            schema = response["content"]["application/problem+json"]["schema"]
            codes = schema["properties"]["code"]["enum"]
            if (status, operation["operationId"]) != ("429", "create_order"):
                assert [code for code in codes if f"`{code}`" not in described[status]] == []


@pytest.mark.parametrize(
    "name", ["../__init__.py", "%2e%2e/__init__.py", "..%2f__init__.py", "/etc/passwd", "%00", ""]
)
def test_nothing_but_the_pages_own_files_is_served(api: Api, name: str) -> None:
    for folder in ("assets", "page"):
        assert api.send("GET", f"/docs/{folder}/{name}", key=None).status_code in (308, 404)
