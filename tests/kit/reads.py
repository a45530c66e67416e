"""What each statement reads, in pages, by EXPLAIN."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa
from psycopg import sql

from tests.kit.length import rounds

#: How many orders the databases have that are looked at.
COUNT = int(os.environ.get("ORDERS", rounds(8000, 20_000)))
GROWING = (
    *("provider_endpoints", "provider_secrets"),
    *("orders", "unpaid_orders", "order_items", "order_events", "payments", "seats"),
    *("payment_entries", "provider_messages"),
    *("stock_items", "stock_adjustments", "freezes", "payment_attempts"),
    *("webhook_subscriptions", "webhook_secrets", "webhook_deliveries"),
)


class Read(NamedTuple):
    """What one statement reads."""

    statement: str
    #: In pages.
    cost: int
    #: What its plan should not have.
    faults: list[str]


Reads = list[Read]


def read_twice(cursor: Any, statement: str, parameters: Any) -> list[Read]:
    """With the plan for these values, and with the one for any: that of a statement kept prepared."""
    cursor.execute("SAVEPOINT looking_twice")
    custom = _explained(cursor, statement, statement, parameters)
    cursor.execute("ROLLBACK TO looking_twice")
    prepared, given = statement, parameters
    if isinstance(parameters, dict):  # an engine with the driver's own way of naming parameters
        places = {name: f"${place}" for place, name in enumerate(parameters, 1)}
        prepared = re.sub(r"%\((\w+)\)s", lambda found: places[found[1]], statement)
        given = parameters.values()
    cursor.execute(f"PREPARE looking AS {prepared}")
    values = [sql.Literal(value).as_string(cursor.connection) for value in given]
    cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    execute = "EXECUTE looking" + (f"({', '.join(values)})" if values else "")
    generic = _explained(cursor, statement, execute, None)
    cursor.execute("DEALLOCATE looking")
    return [custom, generic]


def _explained(cursor: Any, statement: str, run: str, parameters: Any) -> Read:
    explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
    cursor.execute(f"{explain}{run}", parameters)
    [[[report]]] = cursor.fetchall()
    plan = report["Plan"]
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return Read(statement, pages, [fault for node in nodes(plan) for fault in faults(node)])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def faults(node: dict[str, Any]) -> Iterator[str]:
    kind, table = node["Node Type"], node.get("Relation Name")
    if table in GROWING and "Scan" in kind and "Index Cond" not in node:
        yield f"{kind} of all {table}"
    if kind == "Nested Loop" and "Join Filter" in node:
        yield f"each is compared with each: {node['Join Filter']}"
    for condition in ("Filter", "Join Filter", "Index Cond", "Recheck Cond"):
        if "::uuid[]" in node.get(condition, ""):
            yield f"the list of ids is parsed for every row: {node[condition][:80]}"


#: By whether there is a transaction already, or each statement is its own.
UNDO = {True: ("SAVEPOINT looking", "ROLLBACK TO looking"), False: ("BEGIN", "ROLLBACK")}


@contextmanager
def watched(engine: sa.Engine) -> Iterator[Reads]:
    """Everything that ``engine`` is told to run, each statement looked at before it is run."""
    reads: Reads = []

    def before(
        connection: sa.Connection,
        _cursor: Any,
        statement: str,
        parameters: Any,
        _context: Any,
        executemany: bool,  # noqa: FBT001  SQLAlchemy's
    ) -> None:
        if executemany or statement.startswith("BEGIN"):
            return
        cursor = connection.connection.cursor()
        driver: Any = connection.connection.driver_connection
        begin, undo = UNDO[not driver.autocommit]
        cursor.execute(begin)
        reads.extend(read_twice(cursor, statement, parameters))
        cursor.execute(undo)

    sa.event.listen(engine, "before_cursor_execute", before)
    try:
        yield reads
    finally:
        sa.event.remove(engine, "before_cursor_execute", before)
