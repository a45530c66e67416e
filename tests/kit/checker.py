"""Reads the whole history and reports every promise that it breaks, with the evidence.

S1  a paid order is never cancelled, a cancelled one never paid, an order ends once, and its version
    counts its changes
S2  stock is conserved: reserved is what unpaid orders say, on hand what was set and what was adjusted
    since, less what was paid
S3  no order is cancelled before its deadline by the SQL clock; its events tell every change of that
S4  a task is in one place, and none is lost
S5  a stale worker changes nothing: somebody's token stands at a task that is leased, and at no other
S6  one client and key make at most one order
S7  201 means that the order is in SQL as it was answered, 200 that its deadline was moved
S8  an outage adds no dead letter

A feature adds its own in ``promises.py``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.db.base import metadata
from tests.kit.features import brought
from tests.kit.queue_state import NOBODY
from worker import DelayQueue

TERMINAL = {"order.paid": "paid", "order.cancelled": "cancelled"}


class Violation(NamedTuple):
    """A broken promise."""

    promise: str
    evidence: str


class Response(NamedTuple):
    """What a client was told."""

    request: str
    key: str
    status: int
    body: Mapping[str, Any]


@dataclass
class Queue:
    """Where Redis has which tasks."""

    scheduled: list[str]
    leased: list[str]
    dead: list[str]
    #: Of tasks that somebody holds.
    tokens: dict[str, str]
    #: Of which it is stored what their attempts came to.
    remembered: set[str]

    def places(self) -> Counter[str]:
        return Counter([*self.scheduled, *self.leased, *self.dead])


@dataclass
class History:
    """Everything that is known, the database's part of it in one snapshot."""

    orders: dict[str, Any]
    items: dict[str, list[Any]]
    events: list[Any]
    stock: list[Any]
    payments: list[Any]
    adjustments: list[Any]
    queue: Queue | None
    responses: Sequence[Response] = ()
    #: All there are, by table.
    rows: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def read(
    engine: sa.Engine, queue: DelayQueue | None, responses: Iterable[Response] = ()
) -> History:
    """Read the history; without a queue, Redis is left out."""
    # What a client was told before the snapshot is in the snapshot.
    told = [*responses]
    with engine.execution_options(isolation_level="REPEATABLE READ").begin() as connection:
        rows = {
            table.name: connection.execute(sa.select(table)).all()
            for table in metadata.sorted_tables
        }
    endings = {row.order_id: row for row in rows["order_events"] if row.type in TERMINAL}
    unpaid = {row.order_id: row for row in rows["unpaid_orders"]}
    items: dict[str, list[Any]] = {row.id: [] for row in rows["orders"]}
    for row in rows["order_items"]:
        items[row.order_id].append(row)
    return History(
        orders={
            row.id: _in_state(row, unpaid.get(row.id), endings.get(row.id))
            for row in rows["orders"]
        },
        items=items,
        events=list(rows["order_events"]),
        stock=list(rows["stock_items"]),
        payments=list(rows["payments"]),
        adjustments=list(rows["stock_adjustments"]),
        queue=None if queue is None else read_queue(queue),
        responses=told,
        rows=rows,
    )


def _in_state(order: Any, unpaid: Any, ending: Any) -> SimpleNamespace:
    """An order with its state: of its row, if it has one. It is lost without a row and an ending."""
    state = unpaid or ending
    found = SimpleNamespace(
        **order._asdict(),
        status="lost" if state is None else "unpaid" if unpaid else TERMINAL[ending.type],
        expires_at=state and state.expires_at,
        version=state and state.version,
        cancelled_at=None,
        cancel_reason=None,
    )
    if found.status == "cancelled":
        found.cancelled_at, found.cancel_reason = ending.at, ending.data["reason"]
    return found


#: What each request may be answered with.
ANSWERS = {
    "create": {201, 409, 429, 503},
    "extend": {200, 409, 412, 422, 503},
    "pay": {201, 202, 503},
    "refund": {200, 503},
    "cancel": {200, 409, 503},
}
#: What money that was due back may be now.
REFUNDS = ("refund_due", "refunded")


#: A pipeline would follow no failover of a cluster.
LOOK = """
return {
  redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('ZRANGE', KEYS[2], 0, -1), redis.call('HKEYS', KEYS[3]),
  redis.call('HKEYS', KEYS[4]), redis.call('HVALS', KEYS[4])
}
"""


def read_queue(queue: DelayQueue) -> Queue:
    """One look at the queue, in one script."""
    keys = queue.keys
    names = (keys.scheduled, keys.leased, keys.letters, keys.tokens)
    *places, ids, kept = queue._redis.eval(LOOK, len(names), *names)
    scheduled, leased, dead = ([task_id.decode() for task_id in tasks] for tasks in places)
    # Behind each token stands what the task's attempts came to, and dashes instead of nobody's.
    held = {i.decode(): each.decode()[:64] for i, each in zip(ids, kept, strict=True)}
    tokens = {task_id: token for task_id, token in held.items() if token != NOBODY}
    return Queue(scheduled, leased, dead, tokens, {*held})


def violations(
    history: History,
    *,
    stocked: Mapping[str, int],
    drained: bool = False,
    complete: bool = False,
    poison: Iterable[str] = (),
    held: Mapping[str, str] | None = None,
) -> list[Violation]:
    """Every broken promise.

    ``stocked`` is what was put on the shelf of each SKU without a row that says so. ``complete`` says that the queue ought
    to hold a check for every unpaid order, ``drained`` that nothing ought to be left to do,
    ``poison`` which tasks may be dead, ``held`` whose leases have not ended, with their tokens.
    """
    found = [
        *_endings(history),
        *_told(history),
        *_refunds(history),
        *_stock(history, stocked),
        *_deadlines(history),
        *_versions(history),
        *_keys(history),
        *_answers(history),
        *(
            found
            for each in brought("promises")
            for found in each.violations(history, drained=drained)
        ),
    ]
    if history.queue is not None:
        found += _places(history, history.queue, drained=drained, complete=complete)
        strangers = {*history.queue.dead} - {*poison}
        found += [
            Violation("S5", f"the lease on {task_id} was ended by somebody else")
            for task_id, token in (held or {}).items()
            if history.queue.tokens.get(task_id) != token
        ]
        found += [Violation("S8", f"{task_id} is a dead letter") for task_id in sorted(strangers)]
    if drained:
        found += [
            Violation("L", f"order {order.id} is unpaid after the drain, due {order.expires_at}")
            for order in history.orders.values()
            if order.status == "unpaid" and order.id not in set(poison)
        ]
    return found


def _endings(history: History) -> Iterable[Violation]:
    endings: dict[str, list[str]] = {order_id: [] for order_id in history.orders}
    for event in history.events:
        if event.type in TERMINAL:
            endings[event.order_id].append(TERMINAL[event.type])
    applied = Counter(row.order_id for row in history.payments if not row.reason)
    for order in history.orders.values():
        expected = [] if order.status == "unpaid" else [order.status]
        if endings[order.id] != expected:
            yield Violation("S1", f"order {order.id} is {order.status}, events {endings[order.id]}")
        if applied[order.id] != (order.status == "paid" and order.total_minor > 0):
            evidence = f"order {order.id} is {order.status}, {applied[order.id]} payments applied"
            yield Violation("S1", evidence)


def _told(history: History) -> Iterable[Violation]:
    told: dict[str, set[str]] = {}
    for response in history.responses:
        if response.request == "pay" and response.body.get("status") == "applied":
            told.setdefault(response.body["order_id"], set()).add("paid")
        if response.request == "cancel" and response.body.get("status") == "cancelled":
            told.setdefault(response.body["id"], set()).add("cancelled")
    for order_id, statuses in told.items():
        order = history.orders.get(order_id)
        status = "missing" if order is None else order.status
        if statuses != {status}:
            evidence = f"clients were told {sorted(statuses)} of {order_id}, which is {status}"
            yield Violation("S1", evidence)


def _refunds(history: History) -> Iterable[Violation]:
    """Money is noted as due and as sent back once each, and what customers were told is so."""
    due: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for event in history.events:
        if event.type == "payment.refund_due":
            due[event.data["payment_id"]] += 1
        if event.type in ("payment.refunded", "order.refunded"):
            sent[event.data["payment_id"]] += event.data["refund_amount_minor"]
        if event.type == "payment.refund_failed":
            sent[event.data["payment_id"]] -= event.data["refund_amount_minor"]
    statuses = {}
    for row in history.payments:
        statuses[row.id] = row.status
        noted, expected = (due[row.id], sent[row.id]), (bool(row.reason), row.refunded_minor)
        if noted != expected:
            yield Violation("S1", f"payment {row.id}: due and sent {noted}, not {expected}")
    for response in history.responses:
        if response.request in ("pay", "refund") and response.status < HTTPStatus.MULTIPLE_CHOICES:
            told = response.body
            status = statuses.get(told["id"])
            possible = REFUNDS if told["status"] == "refund_due" else (told["status"],)
            if status not in possible:
                evidence = f"payment {told['id']} was said to be {told['status']}, and is {status}"
                yield Violation("S7", evidence)


def _stock(history: History, stocked: Mapping[str, int]) -> Iterable[Violation]:
    held: Counter[str] = Counter()
    sold: Counter[str] = Counter()
    adjusted: Counter[str] = Counter()
    for change in history.adjustments:
        adjusted[change.sku] += change.delta
    for order in history.orders.values():
        counter = {"unpaid": held, "paid": sold}.get(order.status)
        if counter is not None:
            for item in history.items[order.id]:
                counter[item.sku] += item.quantity
    for row in history.stock:
        on_hand = stocked[row.sku] + adjusted[row.sku] - sold[row.sku]
        expected = (on_hand, held[row.sku])
        if (row.on_hand, row.reserved) != expected:
            evidence = f"{row.sku} has {row.on_hand} with {row.reserved} reserved, not {expected}"
            yield Violation("S2", evidence)


def _deadlines(history: History) -> Iterable[Violation]:
    changes = _extensions(history)
    for order in history.orders.values():
        told = changes.get(order.id, [])
        if order.timeout_ms is not None:
            first = order.created_at + timedelta(milliseconds=order.timeout_ms)
        else:
            first = told[0][0] if told else order.expires_at
        deadlines = [first, *(after for _, after in told)]
        if [before for before, _ in told] != deadlines[:-1] or deadlines[-1] != order.expires_at:
            evidence = f"order {order.id} is due {order.expires_at}, its events tell {told}"
            yield Violation("S3", evidence)
        if order.cancel_reason == "expired" and order.cancelled_at < deadlines[-1]:
            evidence = f"order {order.id} cancelled {order.cancelled_at}, due {deadlines[-1]}"
            yield Violation("S3", evidence)
    for response in history.responses:
        if response.request == "extend" and response.status == HTTPStatus.OK:
            at = datetime.fromisoformat(response.body["expires_at"])
            if at not in [after for _, after in changes.get(response.body["id"], [])]:
                yield Violation("S7", f"order {response.body['id']} was said to be due {at}")


def _extensions(history: History) -> dict[str, list[tuple[datetime, datetime]]]:
    """The changes of each order's deadline that its events tell: from when to when."""
    found: dict[str, list[tuple[datetime, datetime]]] = {}
    for event in sorted(history.events, key=lambda event: int(event.id)):
        if event.type == "order.extended":
            before, after = event.data["previous_expires_at"], event.data["expires_at"]
            change = datetime.fromisoformat(before), datetime.fromisoformat(after)
            found.setdefault(event.order_id, []).append(change)
    return found


def _versions(history: History) -> Iterable[Violation]:
    """A free order is paid as it is placed, which is no change."""
    changes = Counter(
        event.order_id
        for event in history.events
        if event.type in ("order.extended", *TERMINAL)
        and (event.type != "order.paid" or history.orders[event.order_id].total_minor > 0)
    )
    for order in history.orders.values():
        if order.version != 1 + changes[order.id]:
            evidence = f"order {order.id} has version {order.version}, {changes[order.id]} changes"
            yield Violation("S1", evidence)


def _places(
    history: History, queue: Queue, *, drained: bool, complete: bool
) -> Iterable[Violation]:
    places = queue.places()
    for task_id, count in places.items():
        if count > 1:
            yield Violation("S4", f"{task_id} is in {count} places")
    for task_id in sorted(queue.remembered - places.keys()):
        yield Violation("S4", f"{task_id} is in no place, and its attempts are remembered")
    for task_id in sorted({*queue.tokens} ^ {*queue.leased}):
        yield Violation("S5", f"{task_id}: leased {task_id in queue.leased}, token not alike")
    if complete:
        for order in history.orders.values():
            if order.status == "unpaid" and order.id not in places:
                yield Violation("S4", f"order {order.id} is unpaid and has no check")
    if drained:
        for task_id in sorted({*queue.scheduled, *queue.leased}):
            yield Violation("S4", f"{task_id} has a check after the drain")


def _keys(history: History) -> Iterable[Violation]:
    keys = Counter((order.client_id, order.idempotency_key) for order in history.orders.values())
    for (client_id, key), count in keys.items():
        if key is not None and count > 1:
            yield Violation("S6", f"{client_id} has {count} orders of the key {key}")
    told: dict[str, set[str]] = {}
    for response in history.responses:
        if response.request == "create" and response.status == 201:
            told.setdefault(response.key, set()).add(response.body["id"])
    for key, ids in told.items():
        if len(ids) > 1:
            yield Violation("S6", f"key {key} was answered with {sorted(ids)}")


def _answers(history: History) -> Iterable[Violation]:
    for response in history.responses:
        if response.request == "create" and response.status == 201:
            order = history.orders.get(response.body["id"])
            if order is None:
                yield Violation("S7", f"order {response.body['id']} was answered, and is not there")
            elif (order.total_minor, order.idempotency_key) != (
                response.body["total_minor"],
                response.key,
            ):
                yield Violation("S7", f"order {order.id} is not what was answered")
        elif response.status not in ANSWERS[response.request]:
            yield Violation("S7", f"{response.request} {response.key}: {response.status}")
