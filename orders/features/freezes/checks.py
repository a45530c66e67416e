"""What the doctor and the metrics read of freezes."""

from collections import Counter
from collections.abc import Iterator

import sqlalchemy as sa

from orders.features.freezes.service import Freezes
from orders.features.freezes.signs import CLOCK, DOOR
from orders.features.parts import Figure
from worker import Finding
from worker.findings import ok, warning

#: How many are named.
NAMED = 5
#: Who opens freezes: the service by itself, by these rules, or a person.
RULES, PERSON = (DOOR, CLOCK), "person"


def freezes(sql: sa.Connection) -> Finding:
    found = Freezes(sql).in_force(NAMED)
    if not found:
        return ok("orders.freezes", "no order is frozen")
    listed = "; ".join(map(str, found))
    advice = (
        "These orders are not cancelled meanwhile. `python -m orders thaw ID` ends a freeze; "
        "`python -m orders freezes` lists them. One that has ended needs a worker to give back time."
    )
    return warning("orders.freezes", f"frozen: {listed}", advice)


def figures(sql: sa.Connection) -> Iterator[Figure]:
    by = Counter(
        each.opened_by if each.opened_by in RULES else PERSON for each in Freezes(sql).in_force()
    )
    yield Figure(
        "orders_freezes",
        "Freezes that are open or giving back time.",
        {(each,): by[each] for each in (*RULES, PERSON)},
        ("opened_by",),
    )
