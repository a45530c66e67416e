"""Webhooks: which events are sent to whom, what is sent, and what happens when nobody takes it.

The flow is run by hand and time is moved in the database, so nothing here waits.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import ThreadingHTTPServer
from threading import Thread
from typing import Any
from unittest.mock import Mock, call

import pytest
import redis
import sqlalchemy as sa
from werkzeug.test import TestResponse

from devtools.processes import wait_until
from devtools.valkey import Valkey
from examples import receiver as receiver_example
from orders.config import Settings
from orders.db.database import autocommit
from orders.db.tables import order_events
from orders.features.doctor.doctor import Doctor  # <doctor/>
from orders.features.freezes.flow import give_back  # <freezes/>
from orders.features.freezes.service import Freezes  # <freezes/>
from orders.features.webhooks.domain import WEBHOOK_QUEUE, WEBHOOK_TYPES
from orders.features.webhooks.flow import LATE_MS, webhook_flow
from orders.features.webhooks.routes import ROLES
from orders.features.webhooks.sending import RETRY_SECONDS, Sending
from orders.features.webhooks.service import MAX_SUBSCRIPTIONS, Webhooks
from orders.features.webhooks.tables import webhook_deliveries
from orders.features.webhooks.turns import Turn, Turns
from tests.kit.api import Api, serving
from tests.kit.expiring import expire_now
from tests.kit.moments import later, now
from tests.kit.races import together
from tests.kit.receiver import Received, Receiver, receiving
from tests.kit.settling import ack, dead_letter
from tests.kit.shop import RecordingScheduler
from tests.kit.workers import running
from tests.signing.signed import is_signed
from tests.webhooks.hooked import Hooked
from worker import DeadLetter, DelayQueue, Level, NotDue, Retry, Task, Worker
from worker.doctor.flows import flow_findings

DAY_MS = 86_400_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def reminder_minutes() -> float:
    return 0.0


@pytest.fixture
def hooked(
    migrated_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,  # noqa: ARG001  empties it
    receiver: Receiver,
    reminder_minutes: float,
) -> Iterator[Hooked]:
    """An application whose webhooks may go to this machine."""
    settings: dict[str, Any] = {
        "webhook_allow_private": True,
        "webhook_expiring_minutes": reminder_minutes,
    }
    with serving(migrated_url, valkey.url, **settings) as api:
        made = Hooked(api, receiver)
        subscription = made.subscribe()
        made.id, made.secret = subscription["id"], subscription["secret"]
        yield made


# -- what is sent --------------------------------------------------------------------------


def test_a_signature_is_dated_by_the_databases_clock(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose own clock is wrong would be refused by every receiver."""
    query = sa.select(sa.func.extract("epoch", now()))
    with hooked.api.services.engine.connect() as connection:
        before = int(connection.execute(query).scalar_one())
    hooked.place()
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 0.0)
        hooked.drain()
    with hooked.api.services.engine.connect() as connection:
        after = int(connection.execute(query).scalar_one())
    [message] = hooked.receiver.messages
    assert before <= int(message.headers["webhook-timestamp"]) <= after


def test_every_event_of_an_order_is_sent_once_and_signed(hooked: Hooked) -> None:
    paid, late = hooked.place(), hooked.place()
    hooked.api.pay(paid["id"])
    hooked.expire(late["id"])
    due: Any = hooked.api.pay(late["id"], "r-2").json
    hooked.api.send("POST", f"/v1/payments/{due['id']}/refund", {"reference": "re-1"})
    hooked.api.send("POST", f"/v1/orders/{hooked.place()['id']}/cancel")

    assert sorted(hooked.drain()) == sorted(
        [
            *("order.created", "order.paid"),
            *("order.created", "order.cancelled", "payment.refund_due", "payment.refunded"),
            *("order.created", "order.cancelled"),
        ]
    )
    messages = hooked.receiver.messages
    assert len({message.id for message in messages}) == 8
    assert all(is_signed(message, hooked.secret) for message in messages)
    assert {each["status"] for each in hooked.deliveries()} == {"delivered"}
    assert hooked.send_due() == 0


def test_a_message_has_the_order_and_the_facts_of_its_event(hooked: Hooked) -> None:
    order = hooked.place()
    hooked.api.pay(order["id"])
    hooked.drain()
    shown = hooked.ask("GET", f"/v1/orders/{order['id']}")
    events = hooked.ask("GET", f"/v1/orders/{order['id']}/events")["data"]
    created, paid = (message.json for message in hooked.receiver.messages)
    assert created["data"] == {"order": shown}
    assert created["timestamp"] == events[0]["at"]
    assert paid == {
        "type": "order.paid",
        "timestamp": events[1]["at"],
        "sequence": paid["sequence"],
        "data": {**events[1]["data"], "order": shown},
    }
    assert paid["sequence"] > created["sequence"]


def test_the_largest_order_fits_into_a_message(hooked: Hooked) -> None:
    skus = [f"{number:064}" for number in range(100)]
    for sku in skus:
        hooked.api.stock(sku, 2**31 - 1, 10**10)
    hooked.place(
        items=[{"sku": sku, "quantity": 1000} for sku in skus],
        client_reference="r" * 64,
        metadata={"note": "x" * 4000},
    )
    hooked.drain()
    [message] = hooked.receiver.messages
    assert len(message.json["data"]["order"]["items"]) == 100
    assert len(message.body) <= 20_000


def test_a_free_order_is_created_and_then_paid(hooked: Hooked) -> None:
    hooked.api.stock("gift", 10, 0)
    hooked.place(items=[{"sku": "gift", "quantity": 1}])
    assert hooked.drain() == ["order.created", "order.paid"]


def test_a_batch_is_sent_to_its_clients_subscriptions_alone(hooked: Hooked) -> None:
    with receiving() as second, receiving() as others:
        hooked.subscribe(url=second.url, events=["order.cancelled"])
        hooked.subscribe(url=others.url, events=["order.cancelled"], key="other")
        mine = [hooked.place()["id"] for _ in range(3)]
        theirs: Any = hooked.api.place(key="other").json
        for order_id in (*mine, theirs["id"]):
            hooked.move_order(order_id, -1)
        assert expire_now(hooked.api.services.orders, [*mine, theirs["id"]]) == {}
        hooked.drain()
        ids = [
            sorted(
                message.json["data"]["order"]["id"]
                for message in receiver.messages
                if message.type == "order.cancelled"
            )
            for receiver in (hooked.receiver, second, others)
        ]
    assert ids == [sorted(mine), sorted(mine), [theirs["id"]]]


def test_a_replay_and_a_payment_that_is_known_send_nothing_again(hooked: Hooked) -> None:
    order = hooked.place(idempotency_key="one")
    assert hooked.place(idempotency_key="one") == order
    for _ in range(2):
        hooked.api.pay(order["id"])
    assert hooked.drain() == ["order.created", "order.paid"]


def test_without_subscriptions_an_order_makes_no_delivery(hooked: Hooked) -> None:
    hooked.api.place(key="other")
    with hooked.api.services.engine.begin() as connection:
        assert connection.execute(sa.select(webhook_deliveries)).all() == []
        assert len(connection.execute(sa.select(order_events)).all()) == 1


def test_after_a_commit_redis_knows_the_clients_subscriptions(hooked: Hooked) -> None:
    """Also those that were made since the last one, and nothing of clients that have none."""
    for _ in range(2):
        hooked.api.place("theirs", key="other")
    hooked.place()
    assert known(hooked) == [hooked.id]
    more = hooked.subscribe()["id"]
    order = hooked.place()
    hooked.place()
    assert known(hooked, 2) == sorted([hooked.id, more])
    hooked.expire(order["id"])
    assert known(hooked, 2) == sorted([hooked.id, more])


def known(hooked: Hooked, count: int = 1) -> list[str]:
    """The tasks of webhooks that Redis has; they are done."""
    hooked.api.services.scheduler_of(WEBHOOK_QUEUE).close()
    queue = DelayQueue(hooked.api.services.redis, WEBHOOK_QUEUE)
    wait_until(lambda: queue.stats().due >= count, "them to be due: in the next millisecond")
    ack(queue, tasks := queue.claim(9, 1000).tasks)
    return sorted(task.id for task in tasks)


# -- what goes wrong -----------------------------------------------------------------------


def test_a_failure_is_tried_for_three_days_with_one_body(hooked: Hooked) -> None:
    hooked.receiver.status, hooked.receiver.text = 500, b"out of order"
    order = hooked.place()
    waits = []
    for _ in RETRY_SECONDS:
        assert hooked.send_due() == 1
        assert hooked.send_due() == 0
        waits.append(retried_after(hooked))
        if len(waits) == 1:
            extend(hooked, order["id"], 60)
            with hooked.api.services.engine.begin() as connection:  # its own message
                connection.execute(
                    sa.delete(webhook_deliveries).where(webhook_deliveries.c.attempts == 0)
                )
        if waits[-1] > 3600:  # whoever looks too early has nothing to do until then
            [early] = (hooked.wake(hooked.id) or {}).values()
            assert isinstance(early, NotDue)
            assert early.delay_ms > 3_600_000
        hooked.move(1000 * RETRY_SECONDS[len(waits) - 1])
    assert waits == pytest.approx(RETRY_SECONDS, abs=0.01)
    assert 71 * 3600 < sum(RETRY_SECONDS) <= 72 * 3600
    assert hooked.send_due() == 1
    [delivery] = hooked.deliveries(status="dead")
    assert (delivery["attempts"], delivery["last_status"]) == (len(RETRY_SECONDS) + 1, 500)
    assert (delivery["last_body"], delivery["next_attempt_at"]) == ("out of order", None)
    hooked.move(DAY_MS)
    assert hooked.send_due() == 0
    assert {message.id for message in hooked.receiver.messages} == {delivery["id"]}
    assert len({message.body for message in hooked.receiver.messages}) == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("asked", "wait"),
    [("3600", 3600), ("1 hour", 5), ("2", 5), (str(10**9), sum(RETRY_SECONDS)), (None, 3600)],
)
def test_an_endpoint_may_ask_for_a_longer_wait(
    hooked: Hooked, status: int, asked: str | None, wait: int
) -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    hooked.receiver.headers["Retry-After"] = asked or in_an_hour
    hooked.receiver.status, hooked.receiver.text = status, b"x" * 1100
    hooked.place()
    hooked.send_due()
    assert retried_after(hooked) == pytest.approx(wait, abs=2)
    [delivery] = hooked.deliveries()
    assert delivery["last_body"] == "x" * 1000


def test_every_attempt_is_counted_once_by_its_outcome(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(hooked.api.services[Sending], "_observe", told.append)
    hooked.place()
    for status in (500, 410):
        hooked.receiver.status = status
        hooked.send_due()
        hooked.change(paused=False)
        hooked.move(DAY_MS)
    set_delivery(hooked, attempts=len(RETRY_SECONDS))
    hooked.receiver.status = 503
    hooked.send_due()
    hooked.receiver.status = 200
    hooked.place()
    hooked.send_due()
    assert told == ["webhook.failed", "webhook.failed", "webhook.dead", "webhook.delivered"]


def test_what_was_erased_is_in_no_later_attempt(hooked: Hooked) -> None:
    order = hooked.place(client_reference="Jane-Doe", metadata={"mail": "jane@a.example"})
    hooked.receiver.status = 500
    hooked.send_due()
    erased = {"client_reference": None, "metadata": None}
    path, headers = f"/v1/orders/{order['id']}", {"If-Match": "*"}
    assert hooked.api.send("PATCH", path, erased, headers=headers).status_code == 200
    with hooked.api.services.engine.connect() as connection:
        assert connection.scalars(sa.select(webhook_deliveries.c.body)).all() == [None]
    hooked.move(DAY_MS)
    hooked.send_due()
    first, second = (each.json["data"]["order"] for each in hooked.receiver.messages)
    assert first == order
    assert second == {**order, **erased, "version": 2}


def retried_after(hooked: Hooked) -> float:
    """How many seconds there are between the last attempt and the next."""
    column = webhook_deliveries.c
    with hooked.api.services.engine.begin() as connection:
        row = connection.execute(sa.select(column.last_attempt_at, column.due_at)).one()
    return float((row.due_at - row.last_attempt_at).total_seconds())


@pytest.mark.parametrize("key", ["customer", "ops"])
def test_owners_and_operators_send_a_dead_delivery_again(hooked: Hooked, key: str) -> None:
    hooked.place()
    [delivery] = hooked.deliveries()
    set_delivery(hooked, status="dead", attempts=11)
    assert hooked.send_due() == 0
    path = f"/v1/webhooks/deliveries/{delivery['id']}/redeliver"
    assert hooked.api.send("POST", path, key="other").status_code == 404
    again = hooked.api.send("POST", path, key=key)
    shown: Any = again.json
    assert (again.status_code, shown["status"], shown["attempts"]) == (200, "pending", 0)
    hooked.drain()
    assert [message.id for message in hooked.receiver.messages] == [delivery["id"]]


def test_what_killed_workers_is_sent_on_request_or_after_the_next_event(hooked: Hooked) -> None:
    """A task is a dead letter, and SQL knows nothing of that."""
    hooked.place()
    [delivery] = hooked.deliveries(status="pending")
    queue = DelayQueue(hooked.api.services.redis, WEBHOOK_QUEUE)
    for path in (f"deliveries/{delivery['id']}/redeliver", f"{hooked.id}/ping", ""):
        assert known(hooked) == [hooked.id]
        queue.schedule(hooked.id, delay_ms=-9)
        dead_letter(queue, [(task, "killed it", None) for task in queue.claim(9, 1000).tasks])
        assert queue.stats().dead == 1
        hooked.ask("POST", f"/v1/webhooks/{path}") if path else hooked.place()
    assert known(hooked) == [hooked.id]
    assert queue.stats().dead == 0


def test_old_deliveries_are_deleted_unless_they_wait(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more of them than are deleted at once, and their subscriptions are idle."""
    monkeypatch.setattr("orders.features.webhooks.sending.SLICE", 2)
    hooked.subscribe(url="https://b.example")
    for _ in range(5):
        hooked.place()
    set_delivery(hooked, status="delivered")
    hooked.place()
    with hooked.api.services.engine.begin() as connection:
        pending = sa.update(webhook_deliveries).where(webhook_deliveries.c.status == "pending")
        connection.execute(pending.values(status="dead"))
    hooked.place()
    age_deliveries(hooked, days=29)
    prune = hooked.api.services[Sending].prune
    assert not prune()
    age_deliveries(hooked, days=31)
    assert [prune() for _ in range(7)] == [*6 * [True], False]
    with hooked.api.services.engine.connect() as connection:
        left = connection.scalars(sa.select(webhook_deliveries.c.status)).all()
    assert left == ["pending", "pending"]


def age_deliveries(hooked: Hooked, days: int) -> None:
    """Let all of them be so old, and have ended then if they have ended."""
    column = webhook_deliveries.c
    ended = sa.case((column.status == "pending", column.due_at), else_=later(now(), "ms"))
    aged = sa.update(webhook_deliveries).values(created_at=later(now(), "ms"), due_at=ended)
    with hooked.api.services.engine.begin() as connection:
        connection.execute(aged, {"ms": -days * DAY_MS})


def set_delivery(hooked: Hooked, **values: Any) -> None:
    with hooked.api.services.engine.begin() as connection:
        connection.execute(sa.update(webhook_deliveries).values(**values))


@pytest.mark.parametrize("status", [300, 302, 307, 400, 404, 429, 500, 503])
def test_what_is_not_a_success_is_tried_again(hooked: Hooked, status: int) -> None:
    hooked.receiver.status = status
    hooked.place()
    hooked.send_due()
    [delivery] = hooked.deliveries(status="pending")
    assert (delivery["attempts"], delivery["last_status"]) == (1, status)
    hooked.receiver.status = 200
    hooked.place()
    # What is due now goes first, and the task stays for what is due later.
    outcomes = [hooked.wake(hooked.id) or {} for _ in range(2)]
    assert [type(each[hooked.id]) for each in outcomes] == [Retry, NotDue]


# <doctor>
@pytest.mark.parametrize("host", ["shop.example", "[::1::2]"])
def test_the_doctor_names_an_endpoint_that_keeps_failing(hooked: Hooked, host: str) -> None:
    """Also one that other parsers of URLs refuse."""
    hooked.change(url=f"http://{host}/hook")
    hooked.place()
    set_delivery(hooked, attempts=3, last_status=503)
    for paused, level in ((True, "ok"), (False, "warning")):
        hooked.change(paused=paused)
        found = {each.check: each for each in Doctor(hooked.api.services.engine).examine()}
        finding = found["orders.webhooks"]
        assert finding.level == level
    assert f"{hooked.id} at {host.strip('[]')}: since " in finding.summary
    assert finding.summary.endswith(" UTC, HTTP 503")


# </doctor>


def test_a_receiver_that_was_down_gets_everything_once_it_is_up(hooked: Hooked) -> None:
    port = hooked.receiver.port
    hooked.receiver.close()
    order = hooked.place()
    hooked.api.pay(order["id"])
    for _ in range(3):
        hooked.send_due()
        hooked.move(1000)
    pending = hooked.deliveries(status="pending")
    assert "refused" in pending[0]["last_error"]
    with receiving(port) as up:
        hooked.move(DAY_MS)
        hooked.send_due()
        hooked.move(DAY_MS)
        hooked.send_due()
        assert sorted(up.types()) == ["order.created", "order.paid"]  # retries have no order
        assert {message.id for message in up.messages} == {each["id"] for each in pending}
    hooked.receiver._server.server_close = hooked.receiver._server.shutdown = lambda: None  # type: ignore[method-assign]


def test_an_endpoint_that_is_gone_pauses_its_subscription(hooked: Hooked) -> None:
    hooked.receiver.status = 410
    hooked.place()
    hooked.send_due()
    shown = hooked.ask("GET", f"/v1/webhooks/{hooked.id}")
    assert shown["paused_at"]
    assert shown["pause_reason"] == "gone"
    [delivery] = hooked.deliveries(status="pending")
    assert delivery["last_status"] == 410
    hooked.receiver.status = 200
    assert hooked.change(paused=False)["paused_at"] is None
    assert hooked.drain() == ["order.created"] * 2


def test_an_old_endpoint_that_is_gone_pauses_no_new_one(hooked: Hooked) -> None:
    with receiving() as other:
        hooked.receiver.status = 410
        hooked.receiver.before = lambda _: hooked.change(url=other.url)
        hooked.place()
        hooked.send_due()
        assert hooked.ask("GET", f"/v1/webhooks/{hooked.id}")["paused_at"] is None
        assert other.types() == ["order.created"], "sent there at once"


def test_a_paused_subscription_keeps_its_deliveries_for_later(hooked: Hooked) -> None:
    first = hooked.place()
    assert hooked.change(paused=True)["pause_reason"] == "requested"
    hooked.api.pay(first["id"])
    hooked.place()
    for _ in range(3):
        assert hooked.wake(hooked.id) == {}
        hooked.move(1000)
    # Nor by a worker that is about to send.
    assert hooked.api.services[Sending].claim(hooked.id, lambda _: "") == (None, False)
    assert hooked.receiver.messages == []
    hooked.change(paused=False)
    assert sorted(hooked.drain()) == ["order.created", "order.created", "order.paid"]


@pytest.mark.parametrize("answer", [200, 410])
def test_a_deleted_subscription_sends_nothing_and_its_deliveries_are_pruned(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    """A few at a time, whatever became of them; also of the one that was being sent, and may be gone."""
    monkeypatch.setattr("orders.features.webhooks.sending.SLICE", 2)
    path = f"/v1/webhooks/{hooked.id}"
    hooked.place()
    [delivery] = hooked.deliveries()
    hooked.receiver.status = answer

    def delete(_: Received) -> None:
        for _number in range(4):
            hooked.place()
        assert hooked.api.send("DELETE", path).status_code == 204
        hooked.place()

    hooked.receiver.before = delete
    hooked.wake(hooked.id)
    assert hooked.drain() == ["order.created"]
    again = f"/v1/webhooks/deliveries/{delivery['id']}/redeliver"
    for method, gone in (("POST", again), ("DELETE", path)):
        assert hooked.api.send(method, gone).status_code == 404
    hooked.move(DAY_MS)
    assert hooked.flow.sweep is not None
    assert [*hooked.flow.sweep(None, 0.0)] == []
    assert hooked.flow.tick is not None
    for _ in range(3):
        hooked.flow.tick()
    with hooked.api.services.engine.begin() as connection:
        assert connection.execute(sa.select(webhook_deliveries)).all() == []


def test_after_two_rotations_all_three_secrets_sign_for_a_day(hooked: Hooked) -> None:
    """The answer to the first one may have been lost, and the receiver has still the old secret."""
    rotated = [hooked.ask("POST", f"/v1/webhooks/{hooked.id}/rotate-secret") for _ in range(2)]
    until = datetime.fromisoformat(rotated[0]["previous_secret_expires_at"])
    assert timedelta(hours=23) < until - datetime.now(UTC) < timedelta(hours=25)
    secrets = [hooked.secret, *(each["secret"] for each in rotated)]
    hooked.place()
    hooked.drain()
    [message] = hooked.receiver.messages
    assert [is_signed(message, secret) for secret in secrets] == [True] * 3
    assert len(message.headers["webhook-signature"].split()) == 3
    with hooked.api.services.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE webhook_secrets SET expires_at = expires_at - interval '1 day'")
        )
    hooked.place()
    hooked.drain()
    message = hooked.receiver.messages[-1]
    assert [is_signed(message, secret) for secret in secrets] == [False, False, True]
    shown = hooked.ask("GET", f"/v1/webhooks/{hooked.id}")
    assert shown["previous_secret_expires_at"] is None


@pytest.mark.parametrize("kept", ["in Redis", "in SQL"])
def test_nothing_is_sent_while_the_queue_is_paused(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """What this process knew already is found after that."""
    monkeypatch.setattr("orders.features.webhooks.flow.ASK_SECONDS", 0)
    services = hooked.api.services
    hooked.flow = webhook_flow(services)
    queue, pauses = DelayQueue(services.redis, WEBHOOK_QUEUE), services.pauses_of(WEBHOOK_QUEUE)
    if kept == "in SQL":
        pauses.begin("", "")
    else:
        queue.pause()
    for _ in range(3):
        hooked.place()
    hooked.send_due()
    assert hooked.receiver.messages == []
    pauses.end()
    queue.resume()
    hooked.move(LATE_MS)
    assert hooked.flow.sweep is not None
    [[due]] = hooked.flow.sweep(None, 0.0)
    hooked.wake(due.id)
    assert hooked.receiver.types() == ["order.created"] * 3


# -- leases --------------------------------------------------------------------------------


def test_a_delivery_that_is_being_sent_is_sent_by_nobody_else(hooked: Hooked) -> None:
    hooked.place()
    seen: list[Any] = []
    hooked.receiver.before = lambda _: seen.append(hooked.flow.handler([Task(hooked.id)]))
    hooked.send_due()
    outcome = seen[0][hooked.id]
    assert isinstance(outcome, NotDue)
    assert 5000 < outcome.delay_ms <= 15_000
    assert len(hooked.receiver.messages) == 1


def test_who_lost_the_lease_records_and_counts_nothing(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent twice, as at least once allows; recorded by the one that has the lease."""
    told: list[str] = []
    monkeypatch.setattr(hooked.api.services[Sending], "_observe", told.append)
    hooked.receiver.status = 500
    hooked.place()

    def takeover(_: object) -> None:
        hooked.receiver.before = lambda _: None
        hooked.move(60_000)
        other = Hooked.of(hooked)
        other.send_due()  # and the first one, which was frozen, hears its answer after that

    hooked.receiver.before = takeover
    hooked.send_due()
    assert len(hooked.receiver.messages) == 2
    [delivery] = hooked.deliveries()
    assert (delivery["status"], delivery["attempts"]) == ("pending", 2)
    assert told == ["webhook.failed"]


def test_many_workers_at_once_send_each_delivery_once(hooked: Hooked) -> None:
    for _ in range(8):
        hooked.place()
    due, workers = hooked.due(), [Hooked.of(hooked) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(lambda worker: worker.wake(*due.values()), workers)]
    assert sorted(message.id for message in hooked.receiver.messages) == sorted(due)


def test_first_attempts_are_in_the_order_of_events(hooked: Hooked) -> None:
    order = hooked.place()
    hooked.api.pay(order["id"])
    hooked.receiver.status = 500  # the first one fails, and holds up nothing
    seen: list[str] = []

    def wake_all(message: Received) -> None:
        """While the first one is being sent, another worker looks for more."""
        hooked.receiver.before = lambda _: None
        Hooked.of(hooked).send_due()
        seen.append(message.type)

    hooked.receiver.before = wake_all
    hooked.send_due()
    assert hooked.receiver.types() == ["order.created", "order.paid"]
    assert seen == ["order.created"]


def test_a_delivery_that_kills_its_worker_ends(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt counts when it begins."""
    told: list[str] = []
    monkeypatch.setattr(hooked.api.services[Sending], "_observe", told.append)
    order = hooked.place()
    set_delivery(hooked, attempts=len(RETRY_SECONDS) + 1)
    hooked.api.pay(order["id"])
    assert hooked.drain() == ["order.paid"]
    [dead] = hooked.deliveries(status="dead")
    assert (dead["type"], dead["last_error"]) == ("order.created", "the worker stopped")
    assert told == ["webhook.dead", "webhook.delivered"]


def test_the_sweep_names_a_line_once_however_long(hooked: Hooked) -> None:
    """By its subscription, unless it is paused."""
    for _ in range(6):
        hooked.place()

    def forgotten(after: float | None = None, before: float = 0.0) -> list[str]:
        assert hooked.flow.sweep is not None
        return [due.id for page in hooked.flow.sweep(after, before) for due in page]

    assert forgotten() == [], "nothing is late yet"
    hooked.move(LATE_MS)
    assert forgotten(before=60.0) == forgotten(after=-60.0) == [hooked.id]
    assert forgotten(before=-60.0) == []
    hooked.change(paused=True)
    assert forgotten() == []
    hooked.change(paused=False)
    hooked.wake(hooked.id)
    assert hooked.receiver.types() == ["order.created"] * 6
    assert hooked.wake(hooked.id) == {}


def test_the_sweep_sends_what_waits_for_want_of_a_thread(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    hooked.subscribe()
    hooked.place()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        hooked.flow.handler([Task(each) for each in hooked.due().values()])
    assert not hooked.is_idle(), "one has lost its turn, and the other one waits"
    assert hooked.flow.sweep is not None
    list(hooked.flow.sweep(None, 0))
    wait_until(hooked.is_idle, "the other one to be sent")
    assert hooked.receiver.types() == ["order.created"]


def test_a_bug_counts_as_an_attempt_and_makes_no_dead_letter(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.features.webhooks.flow.body_of", lambda _: 1 / 0)
    hooked.place()
    hooked.send_due()
    [delivery] = hooked.deliveries(status="pending")
    assert (delivery["attempts"], delivery["last_error"]) == (1, "internal error")


def test_what_is_no_subscription_and_what_is_settled_end_their_tasks(hooked: Hooked) -> None:
    hooked.place()
    hooked.drain()
    for task_id in (hooked.id, hooked.deliveries()[0]["id"]):
        assert hooked.wake(task_id) == {}
    assert isinstance((hooked.wake("what") or {})["what"], DeadLetter)
    assert len(hooked.receiver.messages) == 1


# -- a slow endpoint -----------------------------------------------------------------------


class Threads:
    """Turns on a clock that is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = Turns(8, lambda: self.now)
        self.busy: list[Turn] = []

    def send(self, *subscriptions: str) -> list[str]:
        """Add subscriptions, each named after its client, and return who gets turns."""
        for name in subscriptions:
            self.turns.add(name[0], name)
        taken = [*iter(self.turns.take, None)]
        self.busy += [turn for turn in taken if turn]
        return [turn.subscription_id for turn in taken if turn]

    def answer(self, name: str, seconds: float = 0.01) -> None:
        [turn, *_] = [each for each in self.busy if each.subscription_id == name]
        self.busy.remove(turn)
        self.turns.end(turn, seconds)

    def learn(self, seconds: float, *subscriptions: str) -> None:
        for name in subscriptions:
            self.send(name)
            self.answer(name, seconds)


def test_slow_endpoints_together_get_half_of_the_threads() -> None:
    threads = Threads()
    threads.learn(5.0, "a1", "b1", "c1", "d1", "e1")
    threads.learn(0.01, "f1")
    assert threads.send("a1", "b1", "c1", "d1", "e1") == ["a1", "b1", "c1", "d1"]
    assert threads.send("f1", "new") == ["f1"], "one that has not answered yet counts as slow"
    threads.answer("a1", 5.0)
    assert threads.send() == ["e1"]
    threads.answer("b1", 5.0)
    assert threads.send() == ["new"]
    threads.turns.add("a", "a1")
    threads.turns.add("n", "new")
    threads.answer("new")
    assert threads.send() == ["a1", "new"], "it answered quickly"


def test_who_waits_longest_is_next_but_the_last_threads_are_for_others() -> None:
    threads = Threads()
    names = ["a2", "a3", "a1", "b1", "c1"]
    threads.learn(0.01, *names)
    for name in names:
        threads.turns.add(name[0], name)
    assert threads.send() == names
    threads = Threads()
    threads.learn(0.01, "a1", "b1")
    assert [threads.send("a1") for _ in range(7)] == [["a1"]] * 6 + [[]], "the last are for others"
    assert threads.send("b1", "b1") == ["b1"]


def test_the_doctor_takes_no_slow_endpoint_for_a_missing_worker(
    migrated_url: str, valkey: Valkey, redis_client: redis.Redis, receiver: Receiver
) -> None:
    """Neither while one message is being sent and the next one waits for it, nor before another attempt."""
    queue, settings = DelayQueue(redis_client, WEBHOOK_QUEUE), {"webhook_threads": 2}
    release, sent = threading.Event(), threading.Event()

    def hang(_: Received) -> None:
        sent.set()
        release.wait(60)

    receiver.before = hang
    receiver.status = 500
    unsent = sa.update(webhook_deliveries).where(webhook_deliveries.c.attempts == 0)
    with serving(
        migrated_url, valkey.url, webhook_allow_private=True, webhook_timeout_seconds=8, **settings
    ) as api:
        hooked = Hooked(api, receiver)
        hooked.subscribe()

        def alarms() -> list[str]:
            found = flow_findings(Hooked.of(hooked).flow, queue)
            return [each.summary for each in found if each.level is not Level.OK]

        with running(Worker([hooked.flow], valkey.url)):
            for _ in range(2):
                hooked.place()
            sent.wait(60)
            with api.services.engine.begin() as connection:
                connection.execute(unsent.values(due_at=later(now(), "ms")), {"ms": -8_000})
            wait_until(lambda: not alarms(), "the sweep to find who waits", seconds=5)
            release.set()
            wait_until(lambda: len(receiver.messages) == 2, "both to be sent")
            wait_until(lambda: not alarms(), "both to be put off", seconds=5)


# -- order.expiring ------------------------------------------------------------------------

reminding = pytest.mark.parametrize("reminder_minutes", [5.0])
MINUTE_MS = 60_000


def remind(hooked: Hooked, order_id: str, minutes: float) -> None:
    """Let time pass until so many minutes are left, and everything be looked at."""
    left_ms = round(minutes * MINUTE_MS)
    hooked.move_order(order_id, left_ms)
    moved = sa.update(order_events).where(order_events.c.order_id == order_id)
    with hooked.api.services.engine.begin() as connection:
        connection.execute(
            moved.values(at=later(now(), "for_ms")), {"for_ms": left_ms - 30 * MINUTE_MS}
        )
    hooked.move(DAY_MS // 2)
    hooked.drain()


@reminding
def test_an_order_is_reminded_of_once_before_its_deadline(hooked: Hooked) -> None:
    order = hooked.place(timeout_seconds=1800)
    assert hooked.drain() == ["order.created"]
    [line] = hooked.api.services[Sending].lines(before_ms=2 * DAY_MS)
    assert 1_400_000 < line.due_in_ms <= 1_500_000
    remind(hooked, order["id"], 6)
    assert hooked.receiver.types() == ["order.created"]
    remind(hooked, order["id"], 4.9)
    assert hooked.receiver.types() == ["order.created", "order.expiring"]
    remind(hooked, order["id"], 3)
    assert hooked.receiver.types() == ["order.created", "order.expiring"]
    message = hooked.receiver.messages[-1].json
    assert message["data"]["order"]["id"] == order["id"]


@reminding
def test_a_subscription_is_reminded_once_the_service_reminds_and_no_longer(hooked: Hooked) -> None:
    engine = hooked.api.services.engine
    for minutes, expected in ((0.0, ["order.created"]), (5.0, ["order.created", "order.expiring"])):
        settings = Settings.of(
            database_url="",
            redis_url="",
            webhook_allow_private=True,
            webhook_expiring_minutes=minutes,
        )
        Sending(engine, RecordingScheduler(), settings).offer_reminders()
        order = hooked.place(timeout_seconds=1800)
        with engine.connect() as connection:
            types = sa.select(webhook_deliveries.c.type).filter_by(order_id=order["id"])
            assert sorted(connection.scalars(types)) == expected


@reminding
@pytest.mark.parametrize("end", ["paid", "cancelled", "overdue"])
def test_an_order_that_ended_is_not_reminded_of(hooked: Hooked, end: str) -> None:
    order = hooked.place(timeout_seconds=1800)
    if end == "paid":
        hooked.api.pay(order["id"])
    elif end == "cancelled":
        hooked.api.send("POST", f"/v1/orders/{order['id']}/cancel")
    remind(hooked, order["id"], -1 if end == "overdue" else 4)
    assert "order.expiring" not in hooked.receiver.types()
    with hooked.api.services.engine.begin() as connection:
        pending = sa.select(webhook_deliveries).where(webhook_deliveries.c.status == "pending")
        assert connection.execute(pending).all() == []


@reminding
def test_an_order_whose_timeout_is_shorter_is_not_reminded_of(hooked: Hooked) -> None:
    hooked.place(timeout_seconds=300)
    hooked.place(timeout_seconds=1)
    hooked.drain()
    assert hooked.receiver.types() == ["order.created"] * 2
    assert hooked.deliveries(status="pending") == []


@reminding
def test_a_deadline_that_moves_takes_its_reminder_with_it(hooked: Hooked) -> None:
    order = hooked.place(timeout_seconds=1800)
    hooked.drain()
    remind(hooked, order["id"], 4)
    assert hooked.receiver.types()[1:] == ["order.expiring"]
    extend(hooked, order["id"], 20)
    remind(hooked, order["id"], 20)
    assert hooked.receiver.types()[2:] == ["order.extended"]
    extend(hooked, order["id"], 40)
    remind(hooked, order["id"], 4)
    assert hooked.receiver.types()[3:] == ["order.extended", "order.expiring"]


# <freezes>
@reminding
def test_time_that_the_service_gives_is_told_and_reminded_of(hooked: Hooked) -> None:
    order, services = hooked.place(timeout_seconds=1800), hooked.api.services
    hooked.drain()
    remind(hooked, order["id"], 4)
    known(hooked)
    held = services[Freezes].open(reason="r", by="b", seconds=60, give_back_seconds=1200).freeze
    services[Freezes].thaw(held.id, by="b")
    with autocommit(services.engine) as connection:
        give_back(services, connection, held.id)
    assert known(hooked) == [hooked.id]
    remind(hooked, order["id"], 4)
    assert hooked.receiver.types()[1:] == ["order.expiring", "order.extended", "order.expiring"]
    assert hooked.receiver.messages[2].json["data"]["reason"] == "freeze"


# </freezes>


def extend(hooked: Hooked, order_id: str, minutes: int) -> None:
    deadline = datetime.now(UTC) + timedelta(minutes=minutes)
    body = {"expires_at": deadline.isoformat(timespec="milliseconds")}
    headers = {"If-Match": "*"}
    extended = hooked.api.send("PATCH", f"/v1/orders/{order_id}", body, headers=headers)
    assert extended.status_code == 200


def test_without_the_setting_nothing_waits_for_a_deadline(hooked: Hooked) -> None:
    hooked.place(timeout_seconds=1800)
    hooked.drain()
    with hooked.api.services.engine.begin() as connection:
        assert len(connection.execute(sa.select(webhook_deliveries)).all()) == 1


# -- routes --------------------------------------------------------------------------------


def test_a_subscription_is_shown_without_its_secret(hooked: Hooked) -> None:
    assert hooked.secret.startswith("whsec_")
    shown = hooked.ask("GET", f"/v1/webhooks/{hooked.id}")
    assert shown["url"] == hooked.receiver.url
    assert (shown["events"], shown["paused_at"]) == (None, None)
    assert "secret" not in shown
    made = hooked.subscribe(events=[*WEBHOOK_TYPES])
    assert made["events"] == [*WEBHOOK_TYPES]
    listed = hooked.ask("GET", "/v1/webhooks?limit=1")
    assert listed["data"] == [shown]
    more = hooked.ask("GET", f"/v1/webhooks?limit=1&cursor={listed['next_cursor']}")
    assert [each["id"] for each in more["data"]] == [made["id"]]


def test_deliveries_are_paged_whatever_their_status(hooked: Hooked) -> None:
    for number in range(5):
        hooked.place()
        if number % 2:
            hooked.drain()
    path = f"/v1/webhooks/{hooked.id}/deliveries"
    found, cursor = [], ""
    while cursor is not None:
        page = hooked.ask("GET", f"{path}?limit=2{cursor and '&cursor='}{cursor}")
        found += page["data"]
        cursor = page["next_cursor"]
    assert found[::-1] == hooked.deliveries(), "the newest first"
    assert sorted(each["status"] for each in found) == ["delivered"] * 4 + ["pending"]
    newest, _, middle, *_ = found
    hooked.set_created(newest["id"], "2030-01-01T00:00:00Z")
    hooked.set_created(middle["id"], "2020-01-01T00:00:00Z")
    between = {"created_after": "2020-01-01T00:00:00Z", "created_before": "2030-01-01T00:00:00Z"}
    ids = {each["id"] for each in hooked.deliveries(**between)}
    assert ids == {each["id"] for each in found} - {newest["id"], middle["id"]}
    first, _, _ = hooked.deliveries(**between)
    only = hooked.ask("GET", f"{path}?limit=2&created_before=2030-01-01T00:00:00Z")
    rest = f"{path}?created_after=2020-01-01T00:00:00Z&cursor={only['next_cursor']}"
    assert [each["id"] for each in hooked.ask("GET", rest)["data"]] == [first["id"]]
    one = f"/v1/webhooks/deliveries/{newest['id']}"
    assert hooked.ask("GET", one)["created_at"] == "2030-01-01T00:00:00.000Z"


def test_nobody_sees_or_touches_another_clients_webhooks(hooked: Hooked) -> None:
    hooked.place()
    [delivery] = hooked.deliveries()
    before = hooked.ask("GET", f"/v1/webhooks/{hooked.id}")
    one = f"/v1/webhooks/{hooked.id}"
    own: list[tuple[str, str, Any]] = [
        ("PATCH", one, {"url": "https://a.example/"}),
        ("PATCH", one, {"paused": True, "events": None}),
        ("DELETE", one, None),
        ("POST", f"{one}/rotate-secret", None),
        ("POST", f"{one}/ping", None),
    ]
    requests: list[tuple[str, str, Any]] = [
        ("GET", one, None),
        ("PATCH", one, {"paused": True}),
        ("GET", f"{one}/deliveries", None),
        ("POST", f"/v1/webhooks/deliveries/{delivery['id']}/redeliver", None),
        ("GET", f"/v1/webhooks/deliveries/{delivery['id']}", None),
        *own,
    ]
    for method, path, body in requests:
        assert hooked.api.send(method, path, body, key="other").status_code == 404
    for method, path, body in own:
        assert hooked.api.send(method, path, body, key="ops").status_code == 404
    assert hooked.ask("GET", "/v1/webhooks", key="other")["data"] == []
    assert hooked.ask("GET", one) == before
    assert hooked.deliveries() == [delivery]


def test_operators_read_pause_and_resume_any_subscription(hooked: Hooked) -> None:
    hooked.place()
    [delivery] = hooked.deliveries()
    one = f"/v1/webhooks/{hooked.id}"
    paused = hooked.ask("PATCH", one, {"paused": True}, key="ops")
    assert paused["pause_reason"] == "requested"
    assert hooked.drain() == []
    assert hooked.ask("GET", one, key="ops") == paused
    assert "secret" not in paused
    assert hooked.ask("GET", f"{one}/deliveries", key="ops")["data"] == [delivery]
    found = hooked.ask("GET", f"/v1/webhooks/deliveries/{delivery['id']}", key="ops")
    assert found == delivery
    assert hooked.ask("PATCH", one, {"paused": False}, key="ops")["paused_at"] is None
    assert hooked.drain() == ["order.created"]


def test_a_subscriptions_url_and_events_can_be_changed(hooked: Hooked) -> None:
    order = hooked.place()
    with receiving() as other:
        changed = hooked.change(url=other.url, events=["order.paid"])
        assert (changed["url"], changed["events"]) == (other.url, ["order.paid"])
        assert hooked.change(paused=False) == changed
        hooked.api.pay(order["id"])
        hooked.place()
        hooked.drain()
        assert other.types() == ["order.created", "order.paid"], "what was waiting goes there, too"
    assert hooked.change(url=hooked.receiver.url, events=None)["events"] is None
    assert hooked.change(url=None)["url"] == hooked.receiver.url
    hooked.place()
    assert hooked.drain() == ["order.created"]
    wrong: tuple[Any, ...] = (
        {},
        {"url": "ftp://a.example"},
        {"events": []},
        {"events": ["x"]},
        {"id": "x"},
    )
    for body in wrong:
        assert hooked.api.send("PATCH", f"/v1/webhooks/{hooked.id}", body).status_code == 422


def test_a_ping_is_sent_like_any_message(hooked: Hooked) -> None:
    pinged = hooked.api.send("POST", f"/v1/webhooks/{hooked.id}/ping")
    assert pinged.status_code == 202
    made: Any = pinged.json
    assert (made["type"], made["order_id"], made["status"]) == ("webhook.ping", None, "pending")
    assert hooked.drain() == ["webhook.ping"]
    [message] = hooked.receiver.messages
    assert is_signed(message, hooked.secret)
    at = made["created_at"]
    assert message.json == {"type": "webhook.ping", "timestamp": at, "data": {}}
    shown = hooked.ask("GET", pinged.headers["Location"])
    assert (shown["id"], shown["status"], shown["last_body"]) == (made["id"], "delivered", "thanks")


def test_the_example_receiver_takes_pings_and_orders(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(receiver_example.Receiver, "secret", hooked.secret)
    with ThreadingHTTPServer(("127.0.0.1", 0), receiver_example.Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        hooked.change(url=f"http://127.0.0.1:{server.server_port}/")
        hooked.ask("POST", f"/v1/webhooks/{hooked.id}/ping")
        order = hooked.place()
        hooked.send_due()
        server.shutdown()
    assert {each["status"] for each in hooked.deliveries()} == {"delivered"}
    printed = {tuple(line.split()[:2]) for line in capsys.readouterr().out.splitlines()}
    assert printed == {("webhook.ping", "-"), ("order.created", order["id"])}


def test_redis_is_told_at_once_what_is_to_be_sent_when(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = Mock()
    for service in (hooked.api.services[Webhooks], hooked.api.services[Sending]):
        monkeypatch.setattr(service, "_scheduler", Mock(schedule=schedule))
    made = hooked.ask("POST", f"/v1/webhooks/{hooked.id}/ping")["id"]
    hooked.receiver.status = 500
    hooked.send_due()
    hooked.api.send("POST", f"/v1/webhooks/deliveries/{made}/redeliver")
    for paused in (True, False):
        hooked.change(paused=paused)
    by_hand = call(hooked.id, delay_ms=0, even_if_dead=True)
    assert schedule.mock_calls == [by_hand, call(hooked.id, delay_ms=0), by_hand, by_hand]


def test_a_key_for_payments_alone_may_not_subscribe(hooked: Hooked) -> None:
    hooked.api.keys["till"] = hooked.api.services.clients.create_key("customer", ["payments"])
    sent = {"url": hooked.receiver.url}
    assert hooked.api.send("POST", "/v1/webhooks", sent, key="till").status_code == 403
    assert ROLES == ["orders", "ops"]


def test_a_client_has_so_many_subscriptions_and_no_more(hooked: Hooked) -> None:
    def subscribe(_: int) -> int:
        made = hooked.api.app.test_client().post(
            "/v1/webhooks",
            json={"url": hooked.receiver.url},
            headers={"Authorization": f"Bearer {hooked.api.keys['customer']}"},
        )
        return made.status_code

    for _ in range(MAX_SUBSCRIPTIONS - 3):
        assert subscribe(0) == 201
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(subscribe, range(8))]
    while (status := subscribe(0)) == 201:
        pass
    assert status == 409
    listed = hooked.ask("GET", "/v1/webhooks?limit=100")["data"]
    assert len(listed) == MAX_SUBSCRIPTIONS
    hooked.api.send("DELETE", f"/v1/webhooks/{listed[-1]['id']}")
    assert subscribe(0) == 201
    hooked.place()
    assert len(hooked.drain()) == MAX_SUBSCRIPTIONS


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"url": ""}, {"url": 1}, {"url": "https://a.example/" + "a" * 2000}),
        *(
            {"url": "https://a.example", "events": []},
            {"url": "https://a.example", "events": ["x"]},
        ),
        *({"url": "https://a.example", "events": ["order.paid"] * 2},),
        *({"url": "https://a.example", "secret": "mine"}, {"url": "ftp://a.example"}),
        *({"url": "https://user:password@a.example"}, {"url": "https://a.example/\r\nX: y"}),
        *({"url": "https://a.example/\u0000"},),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(api: Api, body: Any) -> None:
    refused = api.send("POST", "/v1/webhooks", body)
    assert refused.status_code == 422
    assert api.send("GET", "/v1/webhooks").json == {"data": [], "next_cursor": None}


@pytest.mark.parametrize("url", ["http://localhost/", "https://10.0.0.1/", "http://a.example:81/"])
def test_a_private_url_is_refused_where_it_is_not_configured(api: Api, url: str) -> None:
    refused: Any = api.send("POST", "/v1/webhooks", {"url": url}).json
    assert (refused["status"], refused["code"]) == (422, "webhook_url_not_allowed")


def test_a_subscription_is_made_once_for_each_key(api: Api) -> None:
    body = {"url": "https://shop.example/hook", "events": ["order.paid"]}
    key = {"Idempotency-Key": "hook-1"}

    def subscribe(changed: Any = body, whose: str = "customer") -> TestResponse:
        return api.send("POST", "/v1/webhooks", changed, key=whose, headers=key)

    first, *others = together(subscribe, subscribe, subscribe)
    assert {each.status_code for each in (first, *others)} == {201}
    assert len({each.get_data() for each in (first, *others)}) == 1
    replayed = [each.headers.get("Idempotent-Replayed") for each in (first, *others)]
    assert sorted(map(str, replayed)) == ["None", "true", "true"]
    assert first.headers["Location"] == subscribe().headers["Location"]
    assert len((api.send("GET", "/v1/webhooks").json or {})["data"]) == 1
    # Another client's key is another one, and what differs is refused.
    assert (subscribe(whose="other").json or {})["id"] != (first.json or {})["id"]
    changes = ({"url": "https://shop.example/other"}, {"events": None}, {"paused": True})
    for method, change in (*(("PATCH", each) for each in changes), ("DELETE", None)):
        assert api.send(method, first.headers["Location"], change).status_code < 300
        again = subscribe()
        assert (again.status_code, again.get_data()) == (201, first.get_data()), change
        for changed in ({**body, "events": None}, {**body, "url": "https://shop.example/other"}):
            refused = subscribe(changed)
            assert (refused.status_code, (refused.json or {})["code"]) == (422, "key_reused")
