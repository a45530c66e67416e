"""Each statement in a ``.sql`` file is what its header says, and is used."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from psycopg.pq import ExecStatus

from devtools.processes import ROOT
from orders.sql.files import Room, Statement
from orders.sql.sequences import MARK, SEQUENCE
from tests.conftest import Shop

ROOMS = sorted({str(path.parent.parent.relative_to(ROOT)) for path in ROOT.glob("orders/**/*.sql")})
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
    assert re.findall(r"\w+", returned) == names


def _type(connection: Any, oid: int) -> str:
    found: str = connection.exec_driver_sql("SELECT format_type($1::oid, NULL)", (oid,)).scalar()
    return SHORT.get(found, found)


#: Types whose names in headers are shorter.
SHORT = {"timestamp with time zone": "timestamptz", "timestamp with time zone[]": "timestamptz[]"}


@pytest.mark.parametrize("room", ROOMS)
def test_each_is_used_and_each_that_is_used_exists(room: str) -> None:
    sources = [path.read_text() for path in Path(ROOT, room).rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"\bSQL\.(\w+)", source)}
    assert used == {*Room(room.replace("/", ".")).statements}


@pytest.mark.parametrize("named", [*statements()], ids=str)
def test_who_writes_events_announces_them_first(named: Named) -> None:
    """With the lock of `orders.sql.sequences`, whose name is spelled out in each file."""
    writes = "INSERT INTO order_events" in named.statement.text
    announced = f"pg_advisory_xact_lock({MARK << 48} + nextval('{SEQUENCE}'))) IS NOT NULL"
    assert named.statement.text.count(announced) == writes


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
