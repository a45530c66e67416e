"""JSON has one meaning or is refused; cursors and moments go out and come back."""

import contextlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from werkzeug.exceptions import BadRequest

from orders.db.statements import Position
from orders.http.schemas.orders import EventsQuery, OrderIn, OrdersQuery
from orders.http.schemas.paging import encoded
from orders.http.schemas.types import rfc3339
from orders.http.strict_json import MAX_DEPTH, parse_object
from orders.order.domain import Order, OrderStatus
from tests.kit.length import rounds


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (b' {"a": [1, -2.5e3, true, null, "x"]}\n', {"a": [1, -2500.0, True, None, "x"]}),
        ('{"a": "\u00fc\U0001f375"}'.encode(), {"a": "\u00fc\U0001f375"}),
        (b'{"a": {"b": 1}, "c": {"b": 2}}', {"a": {"b": 1}, "c": {"b": 2}}),
        (b'{"a": 1e-400}', {"a": 0.0}),
    ],
)
def test_an_object_is_read(body: bytes, value: Any) -> None:
    assert parse_object(body) == value


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
objects = st.dictionaries(st.text(), st.recursive(leaves | st.text(), st.lists, max_leaves=8))


@given(objects)
@settings(max_examples=rounds(25, 200))
def test_every_json_object_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value


# -- nesting -------------------------------------------------------------------------------


def nested(value: Any, levels: int, *, key: str | None = None) -> Any:
    """``value`` inside so many lists, or objects when there is a key."""
    for _ in range(levels):
        value = [value] if key is None else {key: value}
    return value


@pytest.mark.parametrize("key", [None, "a", "]", "}", '\\"', '"}'])
def test_an_object_of_20_levels_is_read_and_one_of_21_is_not(key: str | None) -> None:
    assert MAX_DEPTH == 20
    deepest = {"a": nested(1, 19, key=key)}
    assert parse_object(json.dumps(deepest).encode()) == deepest
    with pytest.raises(BadRequest, match="nested more than 20 levels deep"):
        parse_object(json.dumps({"a": nested(1, 20, key=key)}).encode())


def test_levels_beside_each_other_do_not_add_up() -> None:
    wide = {"a": [nested({}, 17), nested(1, 18)] * 50, "b": nested(1, 19)}
    assert parse_object(json.dumps(wide).encode()) == wide


@given(st.lists(st.none() | st.text('[]{}"\\\n/u0041'), max_size=2 * MAX_DEPTH), st.text())
def test_only_brackets_outside_of_strings_count(keys: list[str | None], text: str) -> None:
    value: Any = text
    for key in keys:
        value = nested(value, 1, key=key)
    body = json.dumps({"[[[{{{": value}).encode()
    if len(keys) < MAX_DEPTH:
        assert parse_object(body) == {"[[[{{{": value}
    else:
        with pytest.raises(BadRequest, match="levels deep"):
            parse_object(body)


ENDLESS = {
    "lists": b'{"a": ' + b"[" * 100_000,
    "lists that end": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects": b'{"a": ' * 100_000,
    "objects that end": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    "both": b'{"a": [' * 100_000,
    "lists after what ends more than began": b"]}" * 100_000 + b"[" * 200_100,
    "quotes": b'"' * 100_001,
    "escaped quotes": b'{"a": "' + rb"\"" * 100_000,
    "backslashes": b'{"a": "' + b"\\" * 100_001,
}


@pytest.mark.timeout(60)  # a scan that starts again at each quote takes minutes
@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_hundred_thousand_levels_or_quotes_are_refused_at_once(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_object(body)


# -- any bytes -----------------------------------------------------------------------------

tokens = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"a"', b":", b",", b"1", b"e9", b"null", b"\xff"]
)


@given(st.lists(tokens, max_size=12).map(b"".join))
def test_any_bytes_are_an_object_or_a_bad_request(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(parse_object(body), dict)


# -- fingerprints --------------------------------------------------------------------------


def fingerprint(body: str) -> str:
    return OrderIn.model_validate(parse_object(body.encode())).fingerprint()


def test_bodies_that_say_the_same_have_one_fingerprint() -> None:
    one = fingerprint('{"items": [{"sku": "tea", "quantity": 1}]}')
    assert (
        fingerprint('{ "items":[{"quantity":1,"sku":"te\\u0061"}], "timeout_seconds": null}') == one
    )
    tea, cup = '{"sku": "tea", "quantity": 1}', '{"sku": "cup", "quantity": 2}'
    assert fingerprint(f'{{"items": [{tea}, {cup}]}}') == fingerprint(
        f'{{"items": [{cup}, {tea}]}}'
    )
    for other in (
        '{"items": [{"sku": "tea", "quantity": 2}]}',
        '{"items": [{"sku": "cup", "quantity": 1}]}',
        '{"items": [{"sku": "tea", "quantity": 1}], "timeout_seconds": 60}',
        '{"items": [{"sku": "tea", "quantity": 1}, {"sku": "cup", "quantity": 1}]}',
    ):
        assert fingerprint(other) != one


def test_a_later_option_changes_no_earlier_fingerprint() -> None:
    class Later(OrderIn):
        note: str | None = None

    body = {"items": [{"sku": "tea", "quantity": 1}], "timeout_seconds": 60}
    now, later = OrderIn.model_validate(body), Later.model_validate(body)
    assert later.fingerprint() == now.fingerprint()
    assert Later.model_validate({**body, "note": "x"}).fingerprint() != now.fingerprint()


def test_a_fingerprint_names_its_version_and_never_changes() -> None:
    assert (
        fingerprint('{"items": [{"sku": "tea", "quantity": 1}]}')
        == "2:9e20e61aa8d64559ccfabc90f996321b"
    )


# -- cursors -------------------------------------------------------------------------------

ORDER_ID = "018e0000-0000-7000-8000-000000000000"


CREATED = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
EXPIRES = CREATED + timedelta(minutes=30)
ORDER = Order(ORDER_ID, OrderStatus.UNPAID, "EUR", 250, (), CREATED, EXPIRES)


def test_a_cursor_comes_back_as_the_position_it_was() -> None:
    newest = OrdersQuery(cursor=OrdersQuery().cursor_after(ORDER))
    assert newest.after == Position(CREATED, ORDER_ID)
    latest = OrdersQuery(expires_before=EXPIRES)
    latest = OrdersQuery(expires_before=EXPIRES, cursor=latest.cursor_after(ORDER))
    assert latest.after == Position(EXPIRES, ORDER_ID)
    assert (OrdersQuery().after, OrdersQuery().limit) == (None, 50)
    assert EventsQuery(cursor=encoded("events 12345")).after_id == 12_345
    assert EventsQuery().after_id is None


def test_a_cursor_belongs_to_lists_of_one_order() -> None:
    cursor = OrdersQuery().cursor_after(ORDER)
    assert OrdersQuery(status=OrderStatus.PAID, cursor=cursor).after == Position(CREATED, ORDER_ID)
    with pytest.raises(BadRequest, match="not from a list with these filters"):
        _ = OrdersQuery(expires_before=EXPIRES, cursor=cursor).after


@given(st.integers(0, 10**18 - 1))
def test_every_position_among_events_survives(position: int) -> None:
    cursor = encoded(f"events {position}")
    assert cursor.isascii()
    assert "=" not in cursor
    assert EventsQuery(cursor=cursor).after_id == position


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "=",
        "x",
        "!!!!",
        "\u0661",
        "a\0b",
        "____",
        ORDER_ID,
        encoded(-1),
        encoded(10**18),
        encoded("1.0"),
        encoded("\u0661"),
        encoded(ORDER_ID.upper().replace("E", "e").upper()),
        encoded(f"{ORDER_ID}\n"),
        encoded("created_at"),
        encoded(f"created_at {ORDER_ID}"),
        encoded(f"created_at 2026-01-02T03:04:05.678Z {ORDER_ID}\n"),
        encoded(f"created_at 2026-01-02T03:04:05Z {ORDER_ID}"),
        encoded(f"created_at 2026-13-02T03:04:05.678Z {ORDER_ID}"),
        encoded(f"created_at 2026-01-02T03:04:05.67\u0661Z {ORDER_ID}"),
        encoded("created_at 2026-01-02T03:04:05.678Z x"),
        encoded(f"total_minor 2026-01-02T03:04:05.678Z {ORDER_ID}"),
    ],
)
def test_any_other_cursor_is_a_bad_request(cursor: str) -> None:
    with pytest.raises((BadRequest, ValidationError), match=r"This cursor is no|for OrdersQuery"):
        _ = OrdersQuery(cursor=cursor).after
    with pytest.raises((BadRequest, ValidationError), match=r"This cursor is no|for EventsQuery"):
        _ = EventsQuery(cursor=cursor).after_id


# -- moments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2024, 2, 29, 12, tzinfo=UTC), "2024-02-29T12:00:00.000Z"),
        (datetime(2024, 2, 29, 12, 0, 1, 234_999, tzinfo=UTC), "2024-02-29T12:00:01.234Z"),
        (
            datetime(2024, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2))),
            "2024-02-29T23:30:00.000Z",
        ),
    ],
)
def test_moments_are_rfc_3339_in_utc_to_the_millisecond(moment: datetime, text: str) -> None:
    assert rfc3339(moment) == text
