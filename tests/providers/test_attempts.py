"""Payments under way: while one is, its order is not cancelled at its deadline, within bounds."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa

from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.db.tables import unpaid_orders
from orders.features.freezes.service import Freezes  # <freezes/>
from orders.features.providers.attempts.domain import ATTEMPT_QUEUE, MOST_OPEN
from orders.features.providers.attempts.flow import THREADS, attempt_flow
from orders.features.providers.errors import GatewayUnavailable
from orders.features.providers.service import Providers
from orders.features.providers.tables import payment_attempts
from tests.kit.api import Api, content, problem, serving
from tests.kit.length import rounds
from tests.kit.workers import running
from tests.providers.provider import CLOSED, PAID, UNKNOWN, Scripted, Till
from worker import DelayQueue, Level, NotDue, Retry, Task, Worker
from worker.doctor.flows import flow_findings

MINUTE = 60


@pytest.fixture
def most_seconds() -> int:
    """How long attempts may keep an order beyond its deadline."""
    return 1800


@pytest.fixture
def till(
    migrated_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,  # noqa: ARG001  empties it
    most_seconds: int,
) -> Iterator[Till]:
    with serving(migrated_url, valkey.url, attempts_at_most_seconds=most_seconds) as api:
        yield Till(api)


# -- what keeps an order -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["request", "message"])
def test_an_open_attempt_keeps_an_overdue_order_until_it_ends(till: Till, how: str) -> None:
    order_id = till.place(timeout_seconds=600)
    if how == "request":
        opened = till.open(order_id, seconds=900)
        assert opened.status_code == 201
        assert [*content(opened)] == [
            *("id", "order_id", "provider", "reference"),
            *("opened_at", "ends_at", "settled_at", "outcome"),
        ]
    else:
        pending = till.bank.report("payment.pending", order_id=order_id, reference="tx-1")
        assert content(pending)["outcome"] == "pending"
    till.pass_(601)
    [(kept, wait_ms)] = till.expire(order_id).items()
    assert (kept, till.status(order_id)) == (order_id, "unpaid")
    assert 59_000 < wait_ms <= 60_000
    [outcome] = till.settle().values()
    assert isinstance(outcome, NotDue)

    till.pass_(300)
    assert till.expire(order_id) == {}
    assert till.settle() == {}
    assert (till.status(order_id), till.outcomes(order_id)) == ("cancelled", ["expired"])


def test_success_pays_after_the_deadline_and_settles_it(till: Till) -> None:
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.pass_(700)
    assert till.expire(order_id)
    till.bank.paid(order_id, "tx-1")
    assert till.status(order_id) == "paid"
    assert till.settle() == {}
    assert (till.outcomes(order_id), till.gateway.asked) == (["succeeded"], [])


def test_failure_lets_an_overdue_order_be_cancelled_at_once(till: Till) -> None:
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.open(order_id, "tx-2")
    till.pass_(700)
    for reference, left in (("tx-1", [order_id]), ("tx-2", [])):
        failed = till.bank.report("payment.failed", order_id=order_id, reference=reference)
        assert content(failed)["outcome"] == "failed"
        assert [*till.expire(order_id)] == left
    assert till.status(order_id) == "cancelled"
    assert till.outcomes(order_id) == ["failed", "failed"]
    wait_until(lambda: till.checks_due() == 1, "the order's check to be due")
    again = till.bank.report("payment.failed", order_id=order_id, reference="tx-2")
    assert content(again)["outcome"] == "ignored"


def test_a_failure_after_the_money_changes_no_outcome(till: Till) -> None:
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.bank.paid(order_id, "tx-1")
    till.bank.report("payment.failed", order_id=order_id, reference="tx-1")
    assert (till.status(order_id), till.outcomes(order_id)) == ("paid", ["succeeded"])


def test_a_failure_that_overtakes_its_attempt_is_not_undone(till: Till) -> None:
    order_id = till.place(timeout_seconds=600)
    till.bank.report("payment.failed", order_id=order_id, reference="tx-1")
    late = till.bank.report("payment.pending", order_id=order_id, reference="tx-1")
    assert content(late)["outcome"] == "replayed"
    till.pass_(601)
    assert till.expire(order_id) == {}


# <freezes>
def test_attempts_keep_an_order_up_to_a_bound_in_all(till: Till) -> None:
    order_id, stopped = (till.place(timeout_seconds=600) for _ in range(2))
    till.pass_(570)
    for minute in range(30):
        assert till.open(order_id, f"tx-{minute}").status_code == 201
        assert till.expire(order_id)
        till.pass_(MINUTE)
    assert till.expire(order_id)  # half a minute is left
    till.pass_(30)
    problem(till.open(order_id, "one-more"), 409, "attempt_too_late")
    assert till.expire(order_id) == {}
    till.services[Freezes].open("customer", reason="the bank is down", by="a person", seconds=9000)
    assert till.open(stopped, "one-more").status_code == 201, "it counts from now"


# </freezes>


def test_an_order_has_only_so_many_open_attempts(till: Till) -> None:
    order_id = till.place()
    for number in range(MOST_OPEN):
        assert till.open(order_id, f"tx-{number}").status_code == 201
    problem(till.open(order_id, "another"), 409, "too_many_attempts")
    assert till.open(order_id, "tx-1").status_code == 201, "it is known"
    pending = till.bank.report("payment.pending", order_id=order_id, reference="another")
    assert content(pending)["outcome"] == "ignored"
    till.bank.report("payment.failed", order_id=order_id, reference="tx-1")
    assert till.open(order_id, "another").status_code == 201


@pytest.mark.parametrize("most_seconds", [200])
@pytest.mark.parametrize("minutes", [[70], [70, 2, 1000, 70], [1000, 2], [2]])
def test_the_bound_counts_from_the_deadline_in_force(till: Till, minutes: list[int]) -> None:
    till.asks()
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.gateway.answers = [UNKNOWN]
    for each in minutes:
        assert till.move(order_id, timedelta(minutes=each)).status_code == 200
    till.pass_(MINUTE * minutes[-1] + 190)
    assert till.settle(), "its provider is asked before it is cancelled"
    assert (till.gateway.asked, [*till.expire(order_id)]) == (["tx-1"], [order_id])
    till.pass_(20)
    assert till.settle() == {}
    assert till.expire(order_id) == {}
    assert (till.status(order_id), till.outcomes(order_id)) == ("cancelled", ["unknown"])


@pytest.mark.parametrize("most_seconds", [60, 1800])
@pytest.mark.parametrize("seed", range(rounds(5, 50)))
def test_no_attempt_ends_after_what_keeps_its_order(
    till: Till, seed: int, most_seconds: int
) -> None:
    """So an order that expires has no attempt that is still to be ended."""
    till.asks()
    till.services[Providers].add("customer", "card")  # which cannot be asked
    till.gateway.answers = [UNKNOWN, CLOSED, UNKNOWN, GatewayUnavailable()]
    rng, order_id, names = random.Random(seed), till.place(timeout_seconds=1800), range(4)
    outlasts = payment_attempts.c.ends_at > unpaid_orders.c.kept_until
    bound = unpaid_orders.c.expires_at + timedelta(seconds=most_seconds)
    left = sa.select(payment_attempts.c.id).where(
        payment_attempts.c.order_id == unpaid_orders.c.order_id,
        payment_attempts.c.settled_at.is_(None),
        outlasts | unpaid_orders.c.kept_until.is_(None) | (unpaid_orders.c.kept_until > bound),
    )

    def open_one() -> None:
        for name in rng.sample(names, 2):
            provider, seconds = rng.choice(["bank", "card"]), rng.choice([1, 300, 900])
            till.open(order_id, f"tx-{name}", provider=provider, seconds=seconds)

    def fail() -> None:
        till.bank.report("payment.failed", order_id=order_id, reference=f"tx-{rng.choice(names)}")

    def move() -> None:
        till.move(order_id, timedelta(seconds=rng.choice([5, 60, 3000, 80_000])))

    def pass_() -> None:
        till.pass_(rng.randint(1, 900))

    acts: list[Callable[[], object]] = [open_one, fail, move, till.settle, pass_]
    for _ in range(12):
        rng.choice(acts)()
        with till.services.engine.connect() as connection:
            assert connection.scalars(left).all() == []


# -- who may open one ----------------------------------------------------------------------


def test_a_repeated_request_returns_the_same_attempt(till: Till) -> None:
    order_id, other = till.place(), till.place()
    first = till.open(order_id, seconds=60)
    again = till.open(order_id, provider="BANK")
    assert (again.status_code, again.get_data()) == (201, first.get_data())
    assert again.headers["Idempotent-Replayed"] == "true"
    problem(till.open(other), 409, "reference_reused")
    assert len(till.attempts(order_id)) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"seconds": 901}, 422),
        ({"seconds": 0}, 422),
        ({"provider": "nobody"}, 422),
        ({"reference": "a b"}, 422),
    ],
)
def test_what_cannot_be_an_attempt_is_refused(till: Till, body: Any, status: int) -> None:
    assert till.open(till.place(), **body).status_code == status


def test_an_attempt_needs_ones_own_unpaid_order(till: Till) -> None:
    paid, cancelled, unpaid = (till.place() for _ in range(3))
    till.bank.paid(paid)
    till.api.send("POST", f"/v1/orders/{cancelled}/cancel")
    for order_id, key, status, code in (
        (paid, "customer", 409, "already_paid"),
        (cancelled, "customer", 409, "order_cancelled"),
        (unpaid, "other", 404, "order_not_found"),
        (unpaid, "ops", 403, "forbidden"),
        (unpaid, "customer", 409, "reference_reused"),
    ):
        body = {"provider": "bank", "reference": "tx-1" if "reused" in code else "new"}
        path = f"/v1/orders/{order_id}/payment-attempts"
        problem(till.api.send("POST", path, body, key=key), status, code)
    assert (
        till.api.send("GET", f"/v1/orders/{unpaid}/payment-attempts", key="other").status_code
        == 404
    )
    for order_id in (paid, cancelled):
        late = till.bank.report("payment.pending", order_id=order_id, reference="new")
        assert content(late)["outcome"] == "ignored"


# -- asking the provider -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "outcome"),
    [(CLOSED, "cancelled", "closed"), (PAID, "paid", "succeeded")],
)
def test_the_provider_is_asked_before_its_order_is_cancelled(
    till: Till, answer: dict[str, Any], status: str, outcome: str
) -> None:
    till.asks()
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.gateway.answers = [GatewayUnavailable(), UNKNOWN, answer]
    till.pass_(1000)
    for _ in range(2):
        assert till.expire(order_id)
        [retry] = till.settle().values()
        assert isinstance(retry, Retry)
        assert not retry.counted
    assert till.settle() == {}
    till.expire(order_id)
    assert (till.status(order_id), till.outcomes(order_id)) == (status, [outcome])
    assert till.gateway.asked == ["tx-1"] * 3


@pytest.mark.parametrize(
    "answer",
    [
        *(UNKNOWN, GatewayUnavailable()),
        *(PAID | {"amount_minor": 249}, PAID | {"currency": "USD"}, PAID | {"provider": "card"}),
        *(PAID | {"order_id": str(uuid4())}, PAID | {"reference": "tx-9"}),
        *(CLOSED | {"provider": "card"}, CLOSED | {"order_id": str(uuid4())}),
        CLOSED | {"reference": "tx-9"},
    ],
)
def test_what_a_provider_does_not_tell_is_asked_up_to_a_bound(
    till: Till, answer: dict[str, Any] | Exception
) -> None:
    till.asks()
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.gateway.answers = [answer]
    till.pass_(600 + 1799)
    assert till.settle()
    assert till.expire(order_id)
    till.pass_(2)
    assert till.settle() == {}
    assert till.expire(order_id) == {}
    assert (till.status(order_id), till.outcomes(order_id)) == ("cancelled", ["unknown"])
    payments: Any = till.api.send("GET", f"/v1/orders/{order_id}/payments").json
    assert payments["data"] == [], "it is nobody's money"


def test_a_payment_for_another_order_settles_no_attempt(till: Till) -> None:
    till.asks()
    order_id, other = (till.place(timeout_seconds=600) for _ in range(2))
    till.open(order_id)
    till.bank.paid(other, "tx-1")
    till.gateway.answers = [PAID | {"order_id": other}]
    till.pass_(1000)
    assert till.settle()
    assert (till.status(order_id), till.gateway.asked) == ("unpaid", ["tx-1"])


@pytest.mark.parametrize("how", ["cancelled", "paid elsewhere", "too late", "unnoticed"])
def test_attempts_of_an_order_that_ended_are_closed(till: Till, how: str) -> None:
    till.asks()
    order_id = till.place()
    if how != "too late":
        till.open(order_id)
    if how == "unnoticed":  # what ends them fails
        till.alter("ADD CONSTRAINT fails CHECK (false) NOT VALID")
    if how == "paid elsewhere":
        till.bank.paid(order_id, "other")
    else:
        assert till.api.send("POST", f"/v1/orders/{order_id}/cancel").status_code == 200
    if how == "unnoticed":
        till.alter("DROP CONSTRAINT fails")
    if how == "too late":
        assert till.open(order_id).status_code == 409

    def are_due() -> list[bool]:
        assert till.flow.sweep is not None
        return [due.delay_ms <= 0 for page in till.flow.sweep(None, 1000) for due in page]

    if how == "unnoticed":
        assert are_due() == [False]
        till.pass_(900)
    assert are_due() == [True]
    assert till.settle() == {}
    assert (till.gateway.asked, till.outcomes(order_id)) == (["tx-1"], ["closed"])
    [attempt] = till.attempts(order_id)
    assert attempt["opened_at"] <= attempt["ends_at"]


@pytest.mark.parametrize("most_seconds", [60])
def test_a_deadline_that_moves_while_an_attempt_is_opened_moves_its_end(till: Till) -> None:
    order_id, engine = till.place(timeout_seconds=1800), till.services.engine
    acts = [partial(till.open, order_id), partial(till.move, order_id, timedelta(seconds=10))]

    def waiting() -> int:
        count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with engine.connect() as watching:
            return int(watching.scalar(sa.text(count)) or 0)

    with ThreadPoolExecutor(2) as pool, engine.begin() as connection:
        connection.execute(sa.select(unpaid_orders).with_for_update())
        for act in acts:
            before = waiting()
            pool.submit(act)
            wait_until(lambda n=before: waiting() > n, "it to wait")  # type: ignore[misc]
    with engine.connect() as connection:
        outlasting = payment_attempts.c.ends_at > unpaid_orders.c.kept_until
        of_order = payment_attempts.c.order_id == unpaid_orders.c.order_id
        found = connection.execute(sa.select(outlasting).where(of_order)).scalars().all()
    assert found == [False]


def test_no_attempt_ends_by_a_clock_that_jumped_ahead(till: Till) -> None:
    till.asks()
    till.open(till.place(timeout_seconds=600))
    till.services.hooks.clocks.append(lambda: datetime.now(UTC) - timedelta(seconds=1000))
    till.pass_(1000)
    [outcome] = till.settle().values()
    assert isinstance(outcome, NotDue)
    assert till.gateway.asked == []


def test_the_doctor_says_why_an_attempt_is_not_settled_and_when_it_is_tried_again(
    till: Till, valkey: Valkey
) -> None:
    till.asks()
    till.open(till.place(timeout_seconds=600))
    till.gateway.answers = [GatewayUnavailable("Connection refused.")]
    till.pass_(1000)
    queue = DelayQueue(till.services.redis, ATTEMPT_QUEUE)

    def said() -> list[str]:
        found = [*flow_findings(till.flow, queue)]
        return [each.summary for each in found if each.level is Level.WARNING]

    with running(Worker([till.flow], valkey.url)):
        wait_until(lambda: "Connection refused.; next try in" in str(said()), "it to be put off")


def test_providers_that_hang_leave_threads_to_others(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request at a time to each; those that were slow before share half of the threads."""
    monkeypatch.setattr("orders.features.providers.attempts.flow.SLOW_SECONDS", 1e-9)
    healthy, slow = Scripted(), [f"card-{n}" for n in range(THREADS)]
    gateways = {"bank": healthy}
    till.flow = attempt_flow(till.services, lambda _, name: gateways.get(name, till.gateway))

    def open_at(provider: str) -> str:
        opened = till.open(till.place(), uuid4().hex, provider=provider, seconds=1)
        return str(content(opened)["id"])

    for name in ("bank", *slow):
        till.services[Providers].add("customer", name, "https://bank.example/close")
    attempts = [open_at(name) for name in 2 * slow]
    till.gateway.answers = [UNKNOWN]
    till.pass_(1)
    assert len(till.settle()) == len(till.gateway.asked) == len(attempts)
    last = open_at("bank")
    till.pass_(1)
    hangs = till.gateway.hangs = threading.Event()
    with ThreadPoolExecutor(len(attempts)) as pool:
        asking = [pool.submit(till.flow.handler, [Task(each)]) for each in attempts]
        try:
            most = THREADS // 2
            wait_until(lambda: sum(not each.done() for each in asking) == most, "half to hang")
            assert (till.flow.handler([Task(last)]), len(healthy.asked)) == ({}, 1)
        finally:
            hangs.set()
    assert len(till.gateway.asked) == len(attempts) + most


def test_a_provider_that_is_down_delays_only_its_own_orders(till: Till) -> None:
    till.asks()
    ids = [till.place(timeout_seconds=600) for _ in range(6)]
    for number, order_id in enumerate(ids):
        till.open(order_id, f"tx-{number}")
    bystander = till.place(timeout_seconds=600)
    till.gateway.answers = [GatewayUnavailable()]
    till.pass_(1000)
    till.settle()
    assert till.expire(bystander) == {}
    assert {till.status(each) for each in ids if till.expire(each)} == {"unpaid"}
    till.pass_(600 + 1800 - 1000 + 1)
    assert till.settle() == {}, "even those that it was not asked about again"
    assert [till.expire(each) for each in ids] == [{}] * 6
    assert {(till.status(each), *till.outcomes(each)) for each in ids} == {("cancelled", "unknown")}


# <freezes>
def test_a_provider_is_asked_for_as_long_as_a_freeze_lasts(till: Till) -> None:
    till.asks()
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.services[Freezes].open("customer", reason="the bank is down", by="a person", seconds=9000)
    till.gateway.answers = [GatewayUnavailable(), PAID]
    till.pass_(600 + 1800 + 1)
    assert till.settle()
    assert till.settle() == {}
    assert (till.status(order_id), till.outcomes(order_id)) == ("paid", ["succeeded"])


# </freezes>


def test_without_a_gateway_an_ended_attempt_is_settled(till: Till) -> None:
    till.asks()
    order_id = till.place(timeout_seconds=600)
    till.open(order_id)
    till.services[Providers].set_close_url(till.bank.endpoint.id, None)
    till.gateway = None  # type: ignore[assignment]
    till.pass_(1000)
    assert till.settle() == {}
    assert till.expire(order_id) == {}
    assert till.status(order_id) == "cancelled"


def test_the_end_of_an_attempt_is_scheduled_and_swept(till: Till) -> None:
    order_id = till.place()
    attempt = content(till.open(order_id, seconds=60))
    assert till.flow.sweep is not None
    swept = [due.id for page in till.flow.sweep(None, 120) for due in page]
    assert swept == [attempt["id"]]
    queue = DelayQueue(till.services.redis, ATTEMPT_QUEUE)
    wait_until(lambda: queue.stats().scheduled == 1, "its end to be scheduled")


def test_a_provider_is_the_same_in_upper_case_and_registered(api: Api) -> None:
    order_id = content(api.place())["id"]
    first = content(api.pay(order_id, provider="Bank"))
    assert first["provider"] == "bank"
    assert content(api.pay(order_id, provider="BANK")) == first
    api.services[Providers].add("customer", "card")
    problem(api.pay(order_id, "r-2"), 422, "unknown_provider")
    assert content(api.pay(order_id)) == first, "what is known is replayed"
    endpoint, _ = api.services[Providers].add("customer", "bank")
    assert api.pay(order_id, "r-2").status_code == 202
    api.services[Providers].revoke(endpoint.id)
    problem(api.pay(order_id, "r-3"), 422, "unknown_provider")
    Providers(api.services.engine).add("customer", "office")
    assert api.pay(order_id, "r-3", provider="office").status_code == 202, "by another process"
