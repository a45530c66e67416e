"""Each statement in a ``.sql`` file is what its header says, and is used."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from psycopg.pq import ExecStatus

from devtools.processes import ROOT
from orders.db.files import Room, Statement
from orders.order.domain import Order, Payment
from tests.kit.shop import Shop

ROOMS = sorted(
    {str(path.parent.parent.relative_to(ROOT)) for path in ROOT.glob("orders/*/**/sql/*.sql")}
)
HEADER = re.compile(r"^-- :(\w+) +(\S+)", re.MULTILINE)
RETURNS = re.compile(r"^-- returns +(.+(?:\n-- {2,}.+)*)", re.MULTILINE)


class Named(NamedTuple):
    room: str
    name: str
    statement: Statement

    def __str__(self) -> str:
        return f"{self.room} {self.name}"


def statements() -> Iterator[Named]:
    for room in ROOMS:
        for name, statement in Room(room.replace("/", ".")).statements.items():
            yield Named(room, name, statement)


@pytest.mark.parametrize("named", [*statements()], ids=str)
def test_parameters_and_columns_are_those_of_its_header(shop: Shop, named: Named) -> None:
    statement = named.statement
    with shop.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        asked = driver.pgconn
        prepared = asked.prepare(b"looked_at", statement.text.encode())
        assert prepared.status == ExecStatus.COMMAND_OK, prepared.error_message.decode()
        described = asked.describe_prepared(b"looked_at")
        types = [_type(connection, described.param_type(n)) for n in range(described.nparams)]
        names = [(described.fname(n) or b"").decode() for n in range(described.nfields)]
    assert dict(HEADER.findall(statement.source)) == dict(
        zip(statement.parameters, types, strict=True)
    )
    [returned] = RETURNS.findall(statement.source) or [""]
    for short, kind in (("an order", Order), ("a payment", Payment)):
        returned = returned.replace(short, " ".join(field.name for field in fields(kind)))
    assert re.findall(r"\w+", returned) == names


def _type(connection: Any, oid: int) -> str:
    found: str = connection.exec_driver_sql("SELECT format_type($1::oid, NULL)", (oid,)).scalar()
    return SHORT.get(found, found)


#: Types whose names in headers are shorter.
SHORT = {"timestamp with time zone": "timestamptz", "timestamp with time zone[]": "timestamptz[]"}


@pytest.mark.parametrize("room", ROOMS)
def test_each_is_used_and_each_that_is_used_exists(room: str) -> None:
    sources = [path.read_text() for path in Path(ROOT, room).glob("*.py")]
    used = {name for source in sources for name in re.findall(r"\bSQL\.(\w+)", source)}
    assert used == {*Room(room.replace("/", ".")).statements}


#: What several statements write out: words by which it is found wherever it stands, and what it is in full. What
#: this captures, or else all of it, is the same in each.
COPIES = {
    "INSERT INTO order_events": r"(INSERT INTO order_events \(order_id, client_id, type, at, data)(?:, key_id)?"
    r"(?:, expires_at, version, client_reference)?\) SELECT",
    "stock_items.reserved - excluded": r"stock AS \( (INSERT INTO stock_items \(sku, on_hand, reserved, price_minor, "
    r"currency\) SELECT) (?:sku, quantity, quantity|sku COLLATE \"C\", sum\(quantity\), sum\(quantity\)), (0, '' FROM "
    r"order_items WHERE order_id = ANY) \(ARRAY\(SELECT order_id FROM \w+\)\) (?:GROUP BY sku COLLATE \"C\" )?"
    r"(ORDER BY sku COLLATE \"C\" ON CONFLICT \(sku\) DO UPDATE SET) "
    r"(?:on_hand = stock_items.on_hand - excluded.on_hand, )?reserved = stock_items.reserved - excluded.reserved \)",
    "NOT EXISTS (SELECT FROM open)": r"open AS \( SELECT order_id .{0,200} FOR NO KEY UPDATE \)",
}


@pytest.mark.parametrize("words", COPIES)
def test_what_several_statements_write_out_is_the_same_in_each(words: str) -> None:
    text = "; ".join(" ".join(named.statement.text.split()) for named in statements())
    found = re.findall(COPIES[words], text)
    assert len(found) == text.count(words) > 1
    assert len({*found}) == 1


def test_a_parameter_too_few_or_too_many_is_refused(shop: Shop) -> None:
    statement = Statement("SELECT :one::int AS one")
    with shop.engine.connect() as connection:
        assert statement(connection, one=1).scalar() == 1
        for values in ({}, {"two": 2}, {"one": 1, "two": 2}):
            with pytest.raises(TypeError, match="one"):
                statement(connection, **values)


def test_a_statement_that_no_file_has_is_named() -> None:
    with pytest.raises(AttributeError, match=r"orders\.clients/sql has no nothing"):
        _ = Room("orders.clients").nothing
