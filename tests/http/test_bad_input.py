"""Nothing that a client sends is a server's error, and what is refused changes nothing."""

import gzip
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse, create_environ
from werkzeug.wrappers import Response

from devtools.valkey import Valkey
from orders.db.tables import stock_items, unpaid_orders
from orders.http.schemas.paging import encoded
from tests.kit.api import Api, serving
from tests.kit.length import rounds

ORDER = {"items": [{"sku": "tea", "quantity": 1}]}
PAYMENT = {"provider": "bank", "reference": "r-1", "amount_minor": 250, "currency": "EUR"}
STOCK = {"on_hand": 5, "price_minor": 250, "currency": "EUR"}


@pytest.fixture(scope="module")
def api(shared_url: str, valkey: Valkey) -> Iterator[Api]:
    """One application for all of this: refusals hold no stock, as is checked at the end."""
    with serving(shared_url, valkey.url) as made:
        yield made
        with made.services.engine.connect() as connection:
            sums = [sa.func.sum(each) for each in (stock_items.c.reserved, unpaid_orders.c.pieces)]
            reserved, held = (connection.scalar(sa.select(each)) for each in sums)
        assert reserved == held > 0


@pytest.fixture(scope="module")
def order_id(api: Api) -> str:
    return str(json.loads(api.place().get_data())["id"])


def problem(response: Response, status: int) -> Any:
    assert response.status_code == status, response.get_data()
    assert response.content_type == "application/problem+json"
    assert response.get_data().endswith(b"}\n")
    body = json.loads(response.get_data())
    assert body["status"] == status
    assert body["code"]
    return body


def writes(api: Api, order_id: str, **how: Any) -> list[TestResponse]:
    """The same body to every route that takes one."""
    return [
        api.send("POST", "/v1/orders", headers={"Idempotency-Key": uuid4().hex}, **how),
        api.send("POST", f"/v1/orders/{order_id}/payments", **how),
        api.send("PUT", "/v1/stock/tea", key="ops", **how),
    ]


# -- 400: not JSON -------------------------------------------------------------------------


#: Bodies that are no JSON object, or more than one.
ODDITIES: dict[str, bytes] = {
    "nothing": b"",
    "white space": b" \n",
    "an open brace": b"{",
    "text after the end": b"{} {}",
    "a trailing comma": b'{"a": 1,}',
    "a comment": b"{} // done",
    "single quotes": b"{'a': 1}",
    "invalid UTF-8": b'{"a": "\xff"}',
    "an overlong encoding": b'{"a": "\xc0\x80"}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-16 without a mark": '{"a": 1}'.encode("utf-16-le"),
    "UTF-32": '{"a": 1}'.encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a list": b"[]",
    "a list of an object": b"[{}]",
    "null": b"null",
    "true": b"true",
    "a number": b"1",
    "a string": b'"{}"',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "minus Infinity": b'{"a": -Infinity}',
    "a number beyond double": b'{"a": 1e400}',
    "minus a number beyond double": b'{"a": -1e400}',
    "an integer of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "a leading zero": b'{"a": 01}',
    "a plus sign": b'{"a": +1}',
    "a raw newline in a string": b'{"a": "\n"}',
    "a NUL": b'{"a": "\0"}',
    "2,000 lists in one another": b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    "2,000 objects in one another": b'{"a": ' * 2000 + b"1" + b"}" * 2000,
    "the same key twice": b'{"a": 1, "a": 1}',
    "the same key twice, spelled differently": b'{"a": 1, "\\u0061": 2}',
    "the same key twice, deep inside": b'{"a": [{"b": {"c": 1, "c": 2}}]}',
}


@pytest.mark.parametrize("body", ODDITIES.values(), ids=ODDITIES.keys())
def test_a_body_that_is_not_one_json_object_is_malformed(
    api: Api, order_id: str, body: bytes
) -> None:
    for response in writes(api, order_id, data=body, content_type="application/json"):
        assert problem(response, 400)["code"] == "bad_request"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "The body is not JSON: line 1, column 1."),
        (b'{"a": 1,\n "b" 2}', "The body is not JSON: line 2, column 6."),
        (b'{"a": "\xff"}', "The body is not UTF-8: byte 7."),
        (b'{"a": 1, "a": 2}', "The body is not JSON: an object has the same key twice."),
        (b'{"a": NaN}', "The body is not JSON: NaN is not a JSON number."),
        (b'{"a": 1e999}', "The body is not JSON: a number is too large."),
        (b'{"a": ' + b"1" * 5000 + b"}", "The body is not JSON: a number is too long."),
        (b"[]", "The body is not a JSON object."),
        (b'{"a": ' + 20 * b"[" + 20 * b"]" + b"}", "The body is nested more than 20 levels deep."),
    ],
)
def test_what_is_wrong_with_json_is_said_in_our_words(api: Api, body: bytes, detail: str) -> None:
    refused = api.send(
        "PUT", "/v1/stock/tea", key="ops", data=body, content_type="application/json"
    )
    assert problem(refused, 400)["detail"] == detail


# -- 400: headers and queries --------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        *(None, "", "x" * 256, "a\tb", "a\x7fb", "a\0b", "\u00fc"),
        *("\u0661".encode().decode("latin-1"), "a,b", "a, b", ","),
    ],
)
def test_an_idempotency_key_is_1_to_255_printable_characters(api: Api, key: str | None) -> None:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = problem(api.send("POST", "/v1/orders", ORDER, headers=headers), 400)
    assert [name.lower().replace("-", "_") for name in body["errors"]] == ["idempotency_key"]


def test_the_longest_idempotency_key_is_one(api: Api) -> None:
    response = api.place("~" * 255)
    assert response.status_code == 201
    assert api.place("~" * 255).get_data() == response.get_data()


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=101",
        "limit=1000000000",
        f"limit={10**30}",
        "limit=",
        "limit=x",
        "limit=1.5",
        "limit=1_0",
        "limit=1&limit=1",
        "limit=%2B10",
        "limit=%2010",
        "limit=%D9%A1",
        "limit=%00",
        "limit=%ff",
        "cursor=",
        "cursor=x",
        "cursor=%00",
        "cursor=%ff",
        f"cursor={'A' * 5000}",
        "page=1",
        "LIMIT=1",
        "client_id=1",
    ],
)
def test_a_query_that_makes_no_sense_is_malformed(api: Api, order_id: str, query: str) -> None:
    problem(api.send("GET", f"/v1/orders?{query}"), 400)
    problem(api.send("GET", f"/v1/orders/{order_id}/events?{query}"), 400)


@pytest.mark.parametrize(
    "query",
    [
        "status=",
        "status=lost",
        "status=UNPAID",
        "status=unpaid%00",
        "created_after=yesterday",
        "created_after=",
        "created_after=0.5",
        "created_after=1700000000",
        "expires_before=P1D",
        "created_after=2024-02-30T00:00:00Z",
        "created_after=2024-02-29T12:00:00",
        "expires_before=2024-02-29",
        "expires_before=10000-01-01T00:00:00Z",
        f"cursor={encoded(5)}",
    ],
)
def test_a_filter_that_makes_no_sense_is_malformed(api: Api, query: str) -> None:
    problem(api.send("GET", f"/v1/orders?{query}"), 400)


# -- 422: JSON that says what cannot be ----------------------------------------------------

NOT_A_COUNT: list[Any] = [-1, True, 1.5, "1", "", None, [], [1], {}, 2**31, 2**63, 2**64]
NOT_A_COUNT += [10**400, -(2**63)]
NOT_A_TIMEOUT: list[Any] = [True, "60", 60.5, [], {}, 0, -1, 2**63]
NOT_A_WORD: list[Any] = ["", "a b", "a\r\nb", "a\n", "a\0", "\ud800", "\u0661", "t\u00e9", "a/b"]
NOT_A_WORD += ["x" * 256, 1, None, True, [], {}, ["tea"], {"sku": "tea"}]


def without(body: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != field}


def item(**changes: Any) -> dict[str, Any]:
    return {"items": [{"sku": "tea", "quantity": 1, **changes}]}


BAD_ORDERS: list[Any] = [
    {},
    {"items": []},
    {"items": None},
    {"items": {}},
    {"items": "tea"},
    {"items": ["tea"]},
    {"items": [None]},
    {"items": [[]]},
    {"items": [{}]},
    {"items": [{"sku": "tea"}]},
    {"items": [{"quantity": 1}]},
    {"items": [{"sku": f"sku-{n}", "quantity": 1} for n in range(101)]},
    {"items": [{"sku": "tea", "quantity": 1}] * 2},
    item(sku="unheard-of"),
    item(sku="TEA"),
    item(quantity=0),
    *(item(quantity=count) for count in NOT_A_COUNT),
    *(item(sku=word) for word in NOT_A_WORD),
    *(item(sku=word) for word in ("x" * 65, "tea ", " tea", "tea;", "a,b")),
    *(item(**{name: 1}) for name in ("price", "unit_price_minor", "price_minor", "", "\ud800")),
    *(
        {**ORDER, name: value}
        for name, value in {
            "status": "paid",
            "price": 1,
            "total_minor": 1,
            "expires_at": "2030-01-01T00:00:00Z",
            "client_id": "01890a5d-ac96-774b-bcce-b302099a8057",
            "id": "01890a5d-ac96-774b-bcce-b302099a8057",
            "Items": [],
            "\ud800": 1,
            "\0": 1,
            "__class__": {},
        }.items()
    ),
    *({**ORDER, "timeout_seconds": value} for value in NOT_A_TIMEOUT),
]


@pytest.mark.parametrize("body", BAD_ORDERS, ids=lambda body: json.dumps(body)[:60])
def test_an_order_that_cannot_be_is_refused(api: Api, body: Any) -> None:
    headers = {"Idempotency-Key": uuid4().hex}
    before = api.send("GET", "/v1/stock/tea").get_data()
    problem(api.send("POST", "/v1/orders", body, headers=headers), 422)
    assert api.send("GET", "/v1/stock/tea").get_data() == before


BAD_PAYMENTS: list[Any] = [
    {},
    *(without(PAYMENT, field) for field in PAYMENT),
    *({**PAYMENT, "amount_minor": value} for value in [0, *NOT_A_COUNT] if value != 2**31),
    {**PAYMENT, "amount_minor": 2**53},
    *({**PAYMENT, "provider": word} for word in [*NOT_A_WORD, "x" * 51]),
    *({**PAYMENT, "reference": word} for word in NOT_A_WORD if word != "a/b"),
    *({**PAYMENT, "currency": word} for word in [*NOT_A_WORD, "eur", "EURO", "EU", "\u20ac"]),
    *({**PAYMENT, name: "applied"} for name in ("status", "id", "order_id", "reason")),
]


@pytest.mark.parametrize("body", BAD_PAYMENTS, ids=lambda body: json.dumps(body)[:60])
def test_a_payment_that_cannot_be_is_refused(api: Api, order_id: str, body: Any) -> None:
    problem(api.send("POST", f"/v1/orders/{order_id}/payments", body), 422)
    shown = api.send("GET", f"/v1/orders/{order_id}/events").get_data()
    assert len(json.loads(shown)["data"]) == 1


BAD_STOCKS: list[Any] = [
    {},
    *(without(STOCK, field) for field in STOCK),
    *({**STOCK, "on_hand": value} for value in NOT_A_COUNT),
    *({**STOCK, "price_minor": value} for value in NOT_A_COUNT if value != 2**31),
    {**STOCK, "price_minor": 2**53},
    *({**STOCK, "currency": word} for word in [*NOT_A_WORD, "ZZZ", "XXX", "XAU", "DEM", "eur"]),
    *({**STOCK, name: 1} for name in ("reserved", "sku")),
]


@pytest.mark.parametrize("body", BAD_STOCKS, ids=lambda body: json.dumps(body)[:60])
def test_stock_that_cannot_be_is_refused(api: Api, body: Any) -> None:
    before = api.send("GET", "/v1/stock/tea").get_data()
    problem(api.send("PUT", "/v1/stock/tea", body, key="ops"), 422)
    assert api.send("GET", "/v1/stock/tea").get_data() == before


@pytest.mark.parametrize("sku", ["%00", "%ff", "a%20b", "a%0d%0ab", "%D9%A1", "x" * 65])
def test_a_sku_that_cannot_be_is_neither_found_nor_made(api: Api, sku: str) -> None:
    assert problem(api.send("GET", f"/v1/stock/{sku}"), 404)["code"] == "sku_not_found"
    response = api.send("PUT", f"/v1/stock/{sku}", STOCK, key="ops")
    assert problem(response, 404)["code"] == "sku_not_found"


# -- 404: ids ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        str(10**20),
        "%D9%A1",
        "%00",
        "%ff",
        "..",
        "..%2f..",
        "../../healthz",
        "null",
        "{id}%00",
        "{id}%0a",
        "{id}%ff",
        "{id}x",
        "{{{id}}}",
        "urn:uuid:{id}",
        "%D9%A1{tail}",
    ],
)
def test_what_is_not_an_order_id_is_not_found(api: Api, order_id: str, text: str) -> None:
    text = text.format(id=order_id, tail=order_id[1:])
    for method, path, body in (
        ("GET", "/v1/orders/{}", None),
        ("GET", "/v1/orders/{}/events", None),
        ("POST", "/v1/orders/{}/payments", PAYMENT),
        ("POST", "/v1/orders/{}/cancel", None),
    ):
        problem(api.send(method, path.format(text), body), 404)


# -- 413 and 415 ---------------------------------------------------------------------------

TOO_LARGE = b'{"items": "' + b"x" * (16 * 1024) + b'"}'


def test_a_body_over_16_kilobytes_is_too_large(api: Api, order_id: str) -> None:
    for response in writes(api, order_id, data=TOO_LARGE, content_type="application/json"):
        assert problem(response, 413)["code"] == "request_entity_too_large"


def without_length(api: Api, body: bytes, coding: str | None) -> Response:
    headers = {"Authorization": f"Bearer {api.keys['customer']}", "Idempotency-Key": uuid4().hex}
    if coding is not None:
        headers["Transfer-Encoding"] = coding
    environ = create_environ(
        "/v1/orders", method="POST", data=body, content_type="application/json", headers=headers
    )
    del environ["CONTENT_LENGTH"]
    return Response.from_app(api.app, environ | {"wsgi.input_terminated": True})


@pytest.mark.parametrize("coding", ["chunked", "gzip, chunked", None])
def test_a_body_without_its_length_is_refused(api: Api, coding: str | None) -> None:
    """Nobody could tell whether it is whole. HTTP/2 has no transfer coding."""
    before = api.send("GET", "/v1/stock/tea").get_data()
    for body in (json.dumps(ORDER).encode(), TOO_LARGE, b"{"):
        refused = problem(without_length(api, body, coding), 411)
        assert refused["code"] == "length_required"
    assert api.send("GET", "/v1/stock/tea").get_data() == before


def test_a_body_of_just_16_kilobytes_is_read_and_may_name_its_charset(api: Api) -> None:
    body = json.dumps(ORDER).encode().ljust(16 * 1024)
    kind = "Application/JSON; charset=utf-8"
    headers = {"Idempotency-Key": uuid4().hex}
    response = api.send("POST", "/v1/orders", data=body, content_type=kind, headers=headers)
    assert response.status_code == 201


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/problem+json",
        "text/json",
        "",
        None,
    ],
)
def test_a_body_that_is_not_called_json_is_not_read(
    api: Api, order_id: str, content_type: str | None
) -> None:
    for response in writes(api, order_id, data=json.dumps(ORDER), content_type=content_type):
        assert problem(response, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("encoding", ["gzip", "identity, gzip", "br"])
def test_a_compressed_body_is_not_read(api: Api, encoding: str) -> None:
    body = gzip.compress(json.dumps(ORDER).encode())
    headers = {"Idempotency-Key": uuid4().hex, "Content-Encoding": encoding}
    kind = "application/json"
    response = api.send("POST", "/v1/orders", data=body, content_type=kind, headers=headers)
    assert problem(response, 415)["code"] == "unsupported_media_type"


# -- anything ------------------------------------------------------------------------------

NAMES = ["items", "sku", "quantity", "timeout_seconds", "provider", "reference", "amount_minor"]
NAMES += ["currency", "on_hand", "price_minor", "status"]
texts = st.text(st.characters(exclude_categories=()), max_size=20)  # surrogates and NUL as well
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 250, 2**31 - 1, 2**31, 2**53, 2**63]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["tea", "EUR", "bank", "r"]),
    texts,
)
names = st.sampled_from(NAMES) | texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)
orders = st.fixed_dictionaries(
    {"items": st.lists(st.fixed_dictionaries({"sku": leaves, "quantity": leaves}), max_size=3)},
    optional={"timeout_seconds": leaves},
)
payments = st.fixed_dictionaries(dict.fromkeys(PAYMENT, leaves))
stocks = st.fixed_dictionaries(dict.fromkeys(STOCK, leaves))
fuzzed = settings(
    max_examples=rounds(30, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@fuzzed
@given(body=orders | payments | stocks | st.dictionaries(names, values, max_size=4))
def test_no_json_is_a_servers_error(api: Api, order_id: str, body: Any) -> None:
    for response in writes(api, order_id, data=json.dumps(body), content_type="application/json"):
        assert response.status_code < 500, response.get_data()
        assert response.status_code < 300 or problem(response, response.status_code)


printable = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=300)
percents = st.lists(
    st.sampled_from(["%00", "%ff", "%2f", "..", "/", "tea", "%D9%A1", "%0a", "a", "0", "%", ";"])
).map("".join)


@fuzzed
@given(token=printable, idempotency_key=printable, path=percents, value=texts)
def test_no_header_path_or_query_is_a_servers_error(
    api: Api, token: str, idempotency_key: str, path: str, value: str
) -> None:
    value = value.encode("utf-8", "replace").decode()
    for response in (
        api.send("GET", "/v1/orders", key=None, headers={"Authorization": f"Bearer {token}"}),
        api.send("POST", "/v1/orders", ORDER, headers={"Idempotency-Key": idempotency_key}),
        api.send("GET", f"/v1/orders/{path}"),
        api.send("GET", f"/v1/stock/{path}"),
        api.send("PUT", f"/v1/stock/{path}", STOCK, key="ops"),
        api.send("GET", f"/docs/assets/{path}"),
        *(
            api.send("GET", "/v1/orders", query_string={name: value})
            for name in ("limit", "cursor", "status", "created_after", "expires_before", value)
        ),
    ):
        assert response.status_code < 500, response.get_data()
