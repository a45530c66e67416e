"""docs/openapi.json is what the application says, is complete, and says what the routes do."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import OpenAPIV31SpecValidator

import devtools.openapi
from orders import errors
from orders.clients.domain import Client
from orders.errors import OrderError
from orders.features.openapi import document as openapi
from orders.features.providers.domain import Sender  # <providers/>
from orders.features.providers.service import Providers  # <providers/>
from orders.http import problems
from tests.kit.api import Api
from tests.kit.errors import EVERY
from tests.openapi.operations import DOCUMENT, OPERATIONS, TEXT, Operation, example_of, resolved

#: Answered as StorageUnavailable; /readyz names them in a body of its own.
OF_READINESS = {
    errors.StorageReadOnly,
    errors.SchemaOutdated,
    errors.StorageUnfit,
    errors.RowLocked,
}
#: Of the operators' page, which is not in the document, and of commands.
ELSEWHERE = {
    *("login_required", "not_from_this_page", "queue_unavailable"),
    *("key_not_found", "endpoint_not_found"),
}
WITH_A_STATUS = {each for each in EVERY if problems.status_of(each) != 500}
SCOPES = ["orders", "payments", "ops"]


every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The application with nothing behind it, where a key is a list of scopes."""
    made = Api("postgresql+psycopg:///nowhere", "redis://127.0.0.1:1/0")
    made.keys = {"all": " ".join(SCOPES), "none": "none"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made.services.clients, "authenticate", client_of)
        # <providers>
        patch.setattr(made.services[Providers], "knows", lambda _: True)
        patch.setattr(made.services[Providers], "authenticate", sender_of)
        # </providers>
        yield made
    made.close()


# <providers>
def sender_of(endpoint_id: str, *_: object, **__: object) -> Sender:
    return Sender(endpoint_id, "c", "bank")


# </providers>


def client_of(key: str, **_: object) -> Client | None:
    return Client("c", "c", frozenset(key.split())) if key else None


# -- the file ------------------------------------------------------------------------------


def test_the_file_is_what_the_application_says() -> None:
    # Not an assert, whose message would begin with the texts.
    if devtools.openapi.FILE.read_text() != TEXT:
        pytest.fail("run make openapi: docs/openapi.json is out of date", pytrace=False)


def test_the_file_is_valid() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()] == []


# -- complete ------------------------------------------------------------------------------


def schemas() -> Iterator[tuple[str, Any]]:
    """Every schema of a value, by where it is."""
    for name, schema in DOCUMENT["components"]["schemas"].items():
        yield from fields(name, schema)
    for name, header in DOCUMENT["components"]["headers"].items():
        yield name, header["schema"]
    for operation in OPERATIONS:
        for parameter in operation.said["parameters"]:
            yield f"{operation.name} {parameter['name']}", parameter["schema"]


def fields(place: str, schema: Any) -> Iterator[tuple[str, Any]]:
    yield place, schema
    for name, each in schema.get("properties", {}).items():
        yield from fields(f"{place}.{name}", each)
    for kind in schema.get("anyOf", []):
        yield from fields(place, kind)
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from fields(f"{place}[]", schema[keyword])


def is_bounded(schema: Any) -> bool:
    if {"$ref", "const", "enum", "anyOf", "oneOf"} & schema.keys():
        return True
    kind = str(schema["type"])
    if kind == "integer":
        return bool({"minimum", "maximum"} <= schema.keys())
    if kind == "string":
        return bool({"format", "maxLength"} & schema.keys())
    return kind in ("boolean", "null", "object") or "maxItems" in schema


def test_every_value_has_bounds() -> None:
    assert [place for place, schema in schemas() if not is_bounded(schema)] == []


def is_described(schema: Any) -> bool:
    return "description" in resolved(schema) or any(map(is_described, schema.get("anyOf", [])))


def test_everything_has_a_description() -> None:
    described = {
        **DOCUMENT["components"]["schemas"],
        **DOCUMENT["components"]["headers"],
        **DOCUMENT["components"]["securitySchemes"],
        **{tag["name"]: tag for tag in DOCUMENT["tags"]},
        "info": DOCUMENT["info"],
    }
    for name, schema in DOCUMENT["components"]["schemas"].items():
        described |= {f"{name}.{each}": of for each, of in schema.get("properties", {}).items()}
    for operation in OPERATIONS:
        described[operation.name] = operation.said
        for parameter in operation.said["parameters"]:
            described[f"{operation.name} {parameter['name']}"] = parameter
        for status, response in operation.said["responses"].items():
            described[f"{operation.name} {status}"] = resolved(response)
    assert [name for name, thing in described.items() if not is_described(thing)] == []


@every_operation
def test_every_operation_has_a_name_a_summary_and_a_tag(operation: Operation, api: Api) -> None:
    views = {rule.endpoint.rpartition(".")[2] for rule in api.app.url_map.iter_rules()}
    assert operation.name in views
    assert [each.name for each in OPERATIONS].count(operation.name) == 1
    assert re.fullmatch("[A-Z][^.\n]{3,80}", operation.said["summary"])
    assert {*operation.said["tags"]} <= {tag["name"] for tag in DOCUMENT["tags"]}


def check_example(value: Any, schema: Any) -> None:
    whole = {**schema, "components": DOCUMENT["components"]}
    Draft202012Validator(whole, format_checker=FormatChecker()).validate(value)


def test_every_body_is_required() -> None:
    assert all(each.said.get("requestBody", {}).get("required", True) for each in OPERATIONS)


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_the_examples_of_the_fields_make_a_valid_one(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    check_example(example_of(schema), schema)


@every_operation
def test_a_problem_says_what_each_code_means(operation: Operation) -> None:
    for response in map(resolved, operation.said["responses"].values()):
        if openapi.PROBLEM in response.get("content", {}):
            codes = response["content"][openapi.PROBLEM]["schema"]["properties"]["code"]["enum"]
            meanings = response["description"].split("\n\n")
            assert [meaning.partition(": ")[0] for meaning in meanings] == [
                f"`{code}`" for code in codes
            ]


# -- true ----------------------------------------------------------------------------------


def view_of(api: Api, operation: Operation) -> tuple[str, Any]:
    """The endpoint of an operation, and its view."""
    [endpoint] = [
        endpoint
        for endpoint in api.app.view_functions
        if endpoint.split(".")[1:] == [operation.name]
    ]
    return endpoint, api.app.view_functions[endpoint]


def raising(api: Api, operation: Operation, error: Exception, patch: pytest.MonkeyPatch) -> Any:
    """The problem with which an operation answers, when this happens in it."""
    endpoint, view = view_of(api, operation)

    @functools.wraps(view)
    def replacement(**_: Any) -> Any:
        raise error

    with patch.context() as patched:
        patched.setitem(api.app.view_functions, endpoint, replacement)
        return json.loads(api.send(operation.method, operation.url, key="all").get_data())


def refused(api: Api, operation: Operation) -> Iterator[Any]:
    """The problems of requests that do not reach the view, each wrong in one way."""
    method, url, headers, body = operation.method, operation.url, operation.headers, operation.body
    twice = "&" if "?" in url else "?"
    ways: list[dict[str, Any]] = [{"path": f"{url}{twice}a=1&a=2", "json": body}]
    if "security" in operation.said:
        ways += [{"path": url, "json": body, "key": None}]
        if any(scope for way in operation.said["security"] for scope in way.values()):
            ways += [{"path": url, "json": body, "key": "none"}]
    if "{" in operation.path:
        ways += [{"path": re.sub(r"\{\w+\}", "%2F", operation.path), "json": body}]
    if body is not None:
        ways += [
            {"path": url, "data": "{}", "content_type": "text/plain"},
            {"path": url, "data": "{", "content_type": openapi.JSON},
            {"path": url, "data": " " * 20_000, "content_type": openapi.JSON},
            {"path": url, "json": body, "headers": {**headers, "Transfer-Encoding": "chunked"}},
            {"path": url, "json": {}},
        ]
    for way in ways:
        request = {"key": "all", "headers": headers, **way}
        response = api.send(method, request.pop("path"), **request)
        yield json.loads(response.get_data())


@every_operation
def test_the_errors_of_a_route_are_those_that_it_documents(
    operation: Operation, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more and no less. Each response is held to the document by the way, too."""
    _, view = view_of(api, operation)
    found = [*refused(api, operation)]
    found += [raising(api, operation, ZeroDivisionError(), monkeypatch)]
    for error in openapi.errors_of(view.contract):
        found += [raising(api, operation, error("detail"), monkeypatch)]
    assert {(each["status"], each["code"]) for each in found} == operation.codes()


def declared(api: Api) -> set[type[OrderError]]:
    return {
        error
        for operation in OPERATIONS
        for error in openapi.errors_of(view_of(api, operation)[1].contract)
    }


def test_every_error_with_a_status_is_of_some_route(api: Api) -> None:
    others = WITH_A_STATUS - declared(api) - OF_READINESS
    assert {each.code for each in others} <= ELSEWHERE


@every_operation
def test_an_error_that_a_route_does_not_declare_fails_the_test(
    operation: Operation, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, view = view_of(api, operation)
    for error in WITH_A_STATUS - openapi.errors_of(view.contract) - OF_READINESS:
        with pytest.raises(AssertionError, match=f"{operation.name} answered"):
            raising(api, operation, error(), monkeypatch)


def test_a_response_that_is_not_documented_fails_the_test(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    [operation] = [each for each in OPERATIONS if each.name == "healthz"]
    endpoint, _ = view_of(api, operation)
    for answer in (
        ({"status": "ok"}, 201),
        ({"status": "ok"}, 200, {"X-More": "1"}),
        ({"status": "fine"}, 200),
        ({"status": "ok", "more": 1}, 200),
        ("ok", 200),
    ):
        monkeypatch.setitem(api.app.view_functions, endpoint, lambda answer=answer: answer)
        with pytest.raises(AssertionError, match="healthz answered"):
            api.send("GET", "/healthz", key=None)
