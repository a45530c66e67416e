"""What is kept of a person can be erased: no trace of it is left, and none comes back."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import create_server
from typing import Any
from uuid import UUID

import pytest
import redis
import sqlalchemy as sa

from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.db.base import metadata
from orders.db.ids import new_id
from orders.db.statements import FIRST
from orders.db.tables import orders
from orders.features.providers.service import Providers
from orders.features.retention.service import Retention
from orders.features.signing.sender import Answer
from orders.features.webhooks.domain import Message
from orders.features.webhooks.flow import body_of
from orders.features.webhooks.sending import Sending
from orders.features.webhooks.service import Webhooks
from orders.http.schemas.orders import OrderIn
from orders.order.service import NO_DETAILS
from tests.kit.api import Api, content, serving
from tests.kit.queue_steps import bury_now
from tests.kit.receiver import Received, receiving
from tests.kit.settling import dead_letter
from tests.kit.shop import Shop
from tests.providers.provider import waits
from tests.retention.attic import DAYS, Attic
from tests.webhooks.hooked import Hooked
from worker import DelayQueue, LeaseLost
from worker.queue.replies import Settlement, Verb

#: What may stand in any of the places, and where a request's id may stand.
PERSON = "Ada-Lovelace-1815"
NAMED: dict[str, Any] = {"client_reference": PERSON, "metadata": {PERSON: [PERSON]}}
#: Of the table of orders, the text that is nobody's.
NOT_PERSONAL = {"currency", "idempotency_key", "fingerprint"}
COLUMNS = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns NATURAL JOIN information_schema.tables"
    " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
)


class Hooks(Attic):
    """A service that keeps orders for a month, with a subscription whose receiver sends back what it got."""

    def __init__(self, hooked: Hooked) -> None:
        super().__init__(hooked.api)
        self.hooked = hooked
        hooked.receiver.before = self._echo
        self.id = hooked.subscribe()["id"]

    def _echo(self, message: Received) -> None:
        self.hooked.receiver.text = message.body

    def place(self, **body: Any) -> str:
        headers = {"Idempotency-Key": "key-1", "X-Request-ID": PERSON}
        basket = {"items": [{"sku": "tea", "quantity": 1}], **body}
        return str(content(self.api.send("POST", "/v1/orders", basket, headers=headers))["id"])

    def claim(self, write: Callable[[Message], str] = body_of) -> Message | None:
        """The next message of the subscription, as a sender has it that is about to send it."""
        return self.services[Sending].claim(self.id, write).message

    def erase(self, order_id: str) -> str:
        done = self.api.app.test_cli_runner().invoke(args=["erase", order_id])
        assert done.exit_code == 0, done.output
        return done.output

    def traces(self, *texts: str) -> set[str]:
        """Where any of these stands: in which column of which table, or under which key of Redis."""
        with self.services.engine.connect() as connection:
            columns = connection.execute(sa.text(COLUMNS)).all()
            found = {
                f"{table}.{column}"
                for table, column, kind in columns
                for text in connection.execute(sa.text(shown(table, column, kind))).scalars()
                if any(each in text for each in texts)
            }
        assert len(columns) > 100
        store = self.services.redis
        return found | {
            key.decode()
            for key in store.scan_iter()
            if any(each in dumped(store, key) for each in texts)
        }


#: How to read all that is under a key of Redis, by its type.
READ: dict[bytes, tuple[str, ...]] = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", "0", "-1"),
    b"list": ("LRANGE", "0", "-1"),
    b"stream": ("XRANGE", "-", "+"),
}


def dumped(store: redis.Redis, key: bytes) -> str:
    """All that Redis keeps under a key, and the key."""
    kind: Any = store.type(key)
    run: Any = store.execute_command
    command, *rest = READ[kind]
    return repr((key, run(command, key, *rest)))


def shown(table: str, column: str, kind: str) -> str:
    """A query for all that is in a column, as text."""
    value = f"encode({column}, 'escape')" if kind == "bytea" else f"{column}::text"
    return f"SELECT {value} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608  the catalogue's own names


@pytest.fixture
def hooks(
    migrated_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,  # noqa: ARG001  empties it
) -> Iterator[Hooks]:
    settings: dict[str, Any] = {"webhook_allow_private": True, "retention_days": DAYS}
    with receiving() as receiver, serving(migrated_url, valkey.url, **settings) as api:
        yield Hooks(Hooked(api, receiver))


@contextmanager
def no_server() -> Iterator[str]:
    """The URL of what sends back the body, and nothing else."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(connection.recv(9999).split(b"\r\n\r\n")[-1] + b"\r\n\r\n")

    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def guesses(hooks: Hooks, messages: list[tuple[str, bytes]]) -> Iterator[str]:
    """What anybody can compute who guesses the name."""
    basket = {"items": [{"sku": "tea", "quantity": 1}], **NAMED}
    yield OrderIn.model_validate(basket).fingerprint()
    for message_id, body in messages:
        digest = hashlib.sha256(f"{hooks.bank.endpoint.id} {message_id} ".encode() + body)
        yield str(UUID(bytes=digest.digest()[:16]))


def test_what_is_personal_is_exported_and_erased_without_a_trace(hooks: Hooks) -> None:
    """It stands in the columns that are marked, each of them, and nowhere else. Erased, it stands in no column of any table,
    nor anywhere in Redis, and nothing is left by which a guess could be checked.
    """
    sent: list[tuple[str, bytes]] = []
    run = hooks.api.app.test_cli_runner().invoke
    by_reference = ["--client", "customer", "--reference", PERSON]

    def report(kind: str, message_id: str = "", **data: Any) -> Any:
        body = json.dumps({"type": kind, "data": {**data, PERSON: PERSON}}).encode()
        sent.append((message_id or f"m-{len(sent)}", body))
        return hooks.bank.deliver(body, message_id=sent[-1][0])

    with no_server() as url:
        hooks.hooked.subscribe(url=url)
        order_id = hooks.place(**NAMED)
        other = str(content(hooks.api.place(client_reference=PERSON))["id"])
        paid: Any = {
            "order_id": order_id,
            "amount_minor": 250,
            "currency": "EUR",
            "reference": "tx-1",
        }
        refund: Any = {"payment_reference": "tx-1", "reference": "re-1"}
        assert report("refund.succeeded", **refund).status_code == 404, (
            "the payment is not known yet"
        )
        assert waits(report("payment.succeeded", **{**paid, "amount_minor": "2.50"}))
        content(report("payment.created", PERSON, order_id=order_id, reference=PERSON))
        content(report("payment.odd", reference="tx-1"))
        content(report("payment.pending", order_id=order_id, reference="tx-2"))
        content(report("payment.strange", reference="tx-2"))
        content(report("payment.pending", order_id=order_id, reference="tx-1"))
        hooks.hooked.receiver.status = 500
        hooks.hooked.send_due()
        content(report("payment.succeeded", **paid))
        hooks.hooked.receiver.status = 200
        hooks.hooked.send_due()
        content(report("refund.succeeded", **{**refund, "amount_minor": 1}))
    marked = [
        each for table in metadata.tables.values() for each in table.c if each.info.get("personal")
    ]
    assert hooks.traces(PERSON) == {str(each) for each in marked}
    assert hooks.traces(*guesses(hooks, sent)) == {"orders.fingerprint", "provider_messages.id"}
    shown = [json.loads(line) for line in run(args=["export", *by_reference]).stdout.splitlines()]
    assert [each["order_id"] for each in shown] == [other, order_id]
    parts = [shown[1], *shown[1]["webhooks"], *shown[1]["provider_messages"]]
    assert {name for part in parts for name, value in part.items() if PERSON in str(value)} == {
        *("webhooks", "provider_messages", *(each.name for each in marked))
    }
    erased = run(args=["erase", *by_reference])
    assert (erased.exit_code, erased.stdout.count("erased")) == (0, 2)
    assert "5 messages wait" in erased.stdout
    for message in hooks.services[Providers].messages("waiting", page_size=9):
        hooks.services[Providers].dismiss(message.id)
    assert "wait" not in hooks.erase(order_id)
    assert hooks.traces(PERSON, *guesses(hooks, sent)) == set()
    # What is sent from now on says as little, also if a provider repeats it, and the request that placed the order is
    # still known.
    for message_id, body in sent[6:]:
        assert content(hooks.bank.deliver(body, message_id=message_id))["outcome"] == "replayed"
    hooks.hooked.move(10**9)
    hooks.hooked.send_due()
    assert hooks.place(**NAMED) == order_id
    assert PERSON not in run(args=["export", order_id]).stdout
    assert hooks.traces(PERSON, *guesses(hooks, sent)) == set()


@pytest.mark.parametrize("status", [200, 500])
def test_a_late_answer_brings_nothing_back(hooks: Hooks, status: int) -> None:
    order_id = hooks.place(**NAMED)
    message = hooks.claim()
    assert message is not None
    assert PERSON in (message.body or "")
    hooks.erase(order_id)
    hooks.services[Sending].record(message, Answer(status, None, message.body))
    [delivery] = hooks.services[Webhooks].deliveries(None, hooks.id, status=None, page_size=9)
    assert (delivery.last_status, delivery.attempts) == (status, 1)
    assert hooks.traces(PERSON) == set()


def test_a_message_that_was_written_before_is_written_anew(hooks: Hooks) -> None:
    order_id = hooks.place(**NAMED)

    def write(message: Message) -> str:
        written = body_of(message)
        if PERSON in written:
            hooks.api.send(
                "PATCH",
                f"/v1/orders/{order_id}",
                {"client_reference": "A-1", "metadata": None},
                headers={"If-Match": "*"},
            )
        return written

    assert hooks.claim(write) is None, "it has to look again"
    assert hooks.traces(PERSON) == {"orders.origin"}
    message = hooks.claim(write)
    assert message is not None
    assert "A-1" in (message.body or "")


def test_a_dead_letter_that_quotes_an_order_is_tried_again(hooks: Hooks) -> None:
    order_id, queue = hooks.place(**NAMED), hooks.services.queue
    wait_until(lambda: queue.stats().scheduled == 1, "its check")
    bury_now(queue, order_id, error=ValueError(PERSON))
    assert "{order-timeout}:letters" in hooks.traces(PERSON)
    hooks.erase(order_id)
    assert hooks.traces(PERSON) == set()
    assert queue.stats().scheduled == 1


@pytest.mark.parametrize("place", ["scheduled", "leased"])
def test_a_checks_error_goes(hooks: Hooks, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order_id, queue = hooks.place(**NAMED), hooks.services.queue
    wait_until(lambda: queue.stats().scheduled == 1, "its check")
    queue.schedule(order_id, due_at_ms=1)
    [task] = queue.claim(1, 60_000).tasks
    queue.settle([Settlement([task], Verb.FAILED, -1000, ValueError(PERSON))])
    if place == "leased":
        [task] = queue.claim(1, 60_000).tasks

    def requeue(ids: list[str]) -> None:
        DelayQueue.requeue(queue, ids)
        with suppress(LeaseLost):
            dead_letter(queue, [(task, "it dies meanwhile", ValueError(PERSON))])

    monkeypatch.setattr(queue, "requeue", requeue)
    assert "{order-timeout}:tokens" in hooks.traces(PERSON)
    hooks.erase(order_id)
    assert hooks.traces(PERSON) == set()


def test_who_cannot_be_erased_keeps_nobody_else(hooks: Hooks) -> None:
    """Those that are left are named by their ids, as their references may be gone."""
    order_id, unknown = hooks.cancelled(**NAMED), new_id()
    result = hooks.api.app.test_cli_runner().invoke(args=["erase", unknown, order_id])
    assert (result.exit_code, result.output.count("erased")) == (1, 1)
    assert f"not done: {unknown}\n" in result.output
    assert hooks.traces(PERSON) == set()


def test_another_orders_and_clients_messages_stay(hooks: Hooks) -> None:
    order_id = hooks.cancelled()
    hooks.services.clients.create_key("other", ["orders"])
    other = type(hooks.bank)(hooks.api, "other")
    assert other.paid(order_id).status_code == 404
    hooks.bank.paid(order_id, "tx-1")
    assert other.refunded("tx-1").status_code == 404, "a payment of its own"
    hooks.services[Retention].erase(order_id)
    assert len(hooks.services[Providers].messages("waiting", page_size=9)) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name orders"),
        (["--reference", PERSON], "name orders"),
        (["--client", "customer"], "name orders"),
        (["--client", "customer", "--reference", PERSON], "no order with that reference"),
        (["--client", "nobody", "--reference", PERSON], "no client"),
        ([FIRST.id], "no such order"),
        (["A-1"], "not an order's id"),
    ],
)
@pytest.mark.parametrize("command", ["export", "erase"])
def test_who_names_no_order_is_told_so(
    api: Api, command: str, arguments: list[str], says: str
) -> None:
    refused = api.app.test_cli_runner().invoke(args=[command, *arguments])
    assert refused.exit_code
    assert says in refused.stderr


# -- columns -------------------------------------------------------------------------------


def test_each_text_of_an_order_is_personal_or_known_not_to_be() -> None:
    texts = {each.name for each in orders.c if isinstance(each.type, sa.String | sa.JSON)}
    assert texts == {*NO_DETAILS, *NOT_PERSONAL}


def test_what_is_no_detail_cannot_be_changed(shop: Shop) -> None:
    order = shop.place()
    with pytest.raises(TypeError, match="nickname"):
        shop.service.describe(shop.client, order.id, {"nickname": None}, versions=None)
