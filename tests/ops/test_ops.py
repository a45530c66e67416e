"""The operators' page: who may use it, what it shows, and what it mends."""

import re
import time
from typing import Any
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa
from structlog.testing import capture_logs

from devtools.processes import free_port, wait_until
from orders.clients.domain import parted
from orders.db.tables import unpaid_orders
from orders.features.freezes.service import SQL  # <freezes/>
from orders.features.ops import lookups
from orders.features.ops.lookups import NEXT
from orders.features.ops.routes import POLICY, STATIC
from orders.features.webhooks.domain import WEBHOOK_QUEUE  # <webhooks/>
from orders.queues import QUEUE
from orders.timeouts import timeout_flow
from tests.kit.api import Api, serving
from tests.kit.expiring import expire_now
from tests.kit.moments import later, now
from tests.kit.queue_steps import bury_now
from tests.kit.workers import running
from tests.ops.page import Page
from worker import DelayQueue, Worker
from worker.queue.replies import Settlement, Verb

PAUSE = {"queue": QUEUE, "reason": "a restore"}
#: What nobody can read in one line.
UNREADABLE = ["", "x" * 201, "a\x00b", "two\nlines", "a\x9bb", "a\u2028b", "a\u202eb", "a\ud800b"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown is never from before."""
    monkeypatch.setattr("orders.features.ops.routes.FRESH_SECONDS", 0.0)


@pytest.fixture
def page(api: Api) -> Page:
    return Page(api)


def routes(api: Api) -> list[tuple[str, str]]:
    """Every route of the page but its files, with something for each parameter."""
    files = {"/ops", "/ops/static/<name>"}
    return [
        (
            method,
            re.sub(
                r"<any\((\w+).*?>", r"\1", re.sub("<uuid:[a-z_]+>", str(uuid4()), rule.rule[5:])
            ),
        )
        for rule in api.app.url_map.iter_rules()
        if rule.rule.startswith("/ops") and rule.rule not in files
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    ]


# -- who may ---------------------------------------------------------------------------------


def test_only_a_key_with_the_scope_ops_sees_or_changes_anything(api: Api) -> None:
    assert len(routes(api)) >= 9
    api.keys["wrong"] = api.keys["ops"][:-1]
    for method, path in routes(api):
        for key, status in (("customer", 403), ("wrong", 401)):
            refused = Page(api, key).ask(method, path, {} if method == "POST" else None)
            assert refused.status_code == status, path
        refused = api.http.open(f"/ops/{path}", method=method)
        assert (refused.status_code, (refused.json or {})["code"]) == (401, "unauthorized"), path
    assert Page(api).get("state")["client"] == "ops"


def test_the_page_loads_only_its_own_files_and_nothing_is_kept(api: Api, page: Page) -> None:
    with api.http.get("/ops") as shell:
        assert shell.status_code == 200
        assert shell.headers["Content-Security-Policy"] == POLICY
        assert shell.headers["X-Frame-Options"] == "DENY"
        html = shell.get_data(as_text=True)
    assert "<script>" not in html
    assert "style=" not in html
    assert " on" + "click" not in html
    names = (
        "main.js",
        "freezes.js",  # <freezes/>
    )
    for name in names:
        with api.http.get(f"/ops/static/{name}") as script:
            assert script.mimetype == "text/javascript"
            assert script.headers["Content-Security-Policy"] == POLICY
    assert page.ask("GET", "state").headers["Cache-Control"] == "no-store"
    with api.http.get("/ops/static/../routes.py") as other:
        assert other.status_code == 404


# <openapi>
def test_the_page_is_undocumented(api: Api) -> None:
    document: Any = api.http.get("/openapi.json").json
    assert not [path for path in document["paths"] if path.startswith("/ops")]
    assert not {"PauseIn", "LettersIn"} & document["components"]["schemas"].keys()


# </openapi>


# -- what it shows ---------------------------------------------------------------------------


def expire(api: Api, order_id: str, ms: int) -> None:
    """Move an order's deadline to so many milliseconds from now."""
    with api.services.engine.begin() as connection:
        moved = (
            sa.update(unpaid_orders)
            .where(unpaid_orders.c.order_id == order_id)
            .values(expires_at=later(now(), "ms"))
        )
        connection.execute(moved, {"ms": ms})


def test_an_order_that_is_being_paid_is_not_overdue(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    expire(api, order_id, -7000)
    with api.services.engine.begin() as connection:
        until = sa.update(unpaid_orders).values(kept_until=later(now(), "ms"))
        connection.execute(until, {"ms": 60_000})
    sql = page.get("state")["sql"]
    assert (sql["overdue"]["count"], sql["overdue"]["oldest_ms"]) == (0, 0)
    assert 50_000 < sql["next"][0]["expires_in_ms"] <= 60_000


def test_an_overdue_order_whose_check_is_put_off_is_told_with_the_reason(
    api: Api, page: Page, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    order_id = (api.place().json or {})["id"]
    wait_until(lambda: queue.look_up(order_id), "the check to be scheduled")
    expire(api, order_id, -7000)
    assert page.get("state")["sql"]["overdue"]["put_off"] == {"count": 0, "such": ""}
    queue.schedule(order_id, 1)
    [task] = queue.claim(1, 60_000).tasks
    refused = OSError("connection refused")
    queue.settle([Settlement([task], Verb.FAILED, 600_000, refused)])
    put_off = page.get("state")["sql"]["overdue"]["put_off"]
    assert put_off["count"] == 1
    assert put_off["such"].startswith("failed 1 time: OSError: connection refused; next try in ")


def test_an_overdue_order_is_told_behind_many_being_paid(api: Api, page: Page) -> None:
    paying = [(api.place().json or {})["id"] for _ in range(NEXT)]
    for order_id in paying:
        expire(api, order_id, -9000)
    with api.services.engine.begin() as connection:
        until = sa.update(unpaid_orders).values(kept_until=later(now(), "ms"))
        connection.execute(until, {"ms": 60_000})
    expire(api, (api.place().json or {})["id"], -7000)
    overdue = page.get("state")["sql"]["overdue"]
    assert (overdue["count"], 7000 <= overdue["oldest_ms"] < 9000) == (1, True)


def test_orders_are_shown_as_they_wait_are_overdue_and_end(api: Api, page: Page) -> None:
    first = (api.place(client_reference="A-1").json or {})["id"]
    second = (api.place().json or {})["id"]
    sql = page.get("state")["sql"]
    assert sql["answers"]
    assert (sql["unpaid"]["count"], sql["overdue"]["count"], sql["latest"]) == (2, 0, [])
    assert [each["id"] for each in sql["next"]] == [first, second]
    assert sql["next"][0]["client_reference"] == "A-1"
    assert sql["next"][0]["client"] == "customer"
    assert 1_700_000 < sql["next"][0]["expires_in_ms"] <= 1_800_000
    expire(api, second, -7000)
    sql = page.get("state")["sql"]
    assert (sql["overdue"]["count"], sql["overdue"]["oldest_ms"] >= 7000) == (1, True)
    assert [each["id"] for each in sql["next"]] == [second, first]
    expire_now(api.services.orders, [second])
    sql = page.get("state")["sql"]
    assert (sql["unpaid"]["count"], sql["overdue"]["count"]) == (1, 0)
    assert [each["id"] for each in sql["latest"]] == [second]
    assert sql["latest"][0]["late_ms"] >= 7000


def test_a_cancellation_on_request_is_not_late(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    assert page.get("state")["sql"]["latest"] == []


def test_queues_and_workers_are_shown(page: Page, redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    queue.schedule_many([("due", 1, b""), ("later", 2**50, b"")])
    queue.beat("w-1", {"up": True, "holds": 2, "oldest_seconds": 0.5})
    seen = page.queue()
    counts = {name: seen[name] for name in ("scheduled", "due", "leased", "dead", "paused")}
    assert counts == {"scheduled": 2, "due": 1, "leased": 0, "dead": 0, "paused": False}
    [worker] = seen["workers"]
    assert (worker["id"], worker["up"], worker["holds"]) == ("w-1", True, 2)
    assert not worker["silent"]


def test_an_order_is_found_by_its_id_or_its_clients_reference(api: Api, page: Page) -> None:
    ids = [(api.place(client_reference="A-17").json or {})["id"] for _ in range(2)]
    headers = {"Idempotency-Key": uuid4().hex}
    body = {"items": [{"sku": "tea", "quantity": 1}], "client_reference": "A-17"}
    ids.append(
        (api.send("POST", "/v1/orders", body, key="other", headers=headers).json or {})["id"]
    )
    assert {each["id"] for each in page.get("search?text=A-17")["orders"]} == {*ids}
    assert [each["id"] for each in page.get(f"search?text={ids[0].upper()}")["orders"]] == [ids[0]]
    for nothing in ("A-1", str(uuid4()), "%25"):
        assert page.get(f"search?text={nothing}")["orders"] == []


def test_an_orders_story_has_events_and_payments(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    story = page.get(f"orders/{order_id}")
    assert story["order"]["id"] == order_id
    assert [each["type"] for each in story["events"]] == ["order.created"]
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    api.pay(order_id)
    story = page.get(f"orders/{order_id}")
    assert [each["type"] for each in story["events"]] == [
        "order.created",
        "order.cancelled",
        "payment.refund_due",
    ]
    assert [each["status"] for each in story["payments"]] == ["refund_due"]
    assert page.ask("GET", f"orders/{uuid4()}").status_code == 404


# <webhooks>
def test_an_orders_story_has_its_webhooks(api: Api, page: Page) -> None:
    hook = api.send("POST", "/v1/webhooks", {"url": "https://shop.example/hook"}).json or {}
    order_id = (api.place().json or {})["id"]
    [step] = page.get(f"orders/{order_id}")["steps"]
    assert (step["title"], step["text"]) == (
        *("webhook order.created pending", "https://shop.example/hook"),
    )
    assert step["next"]
    api.send("PATCH", f"/v1/webhooks/{hook['id']}", {"paused": True})
    [step] = page.get(f"orders/{order_id}")["steps"]
    assert (step["text"].endswith(", its webhook is paused"), step["next"]) == (True, None)
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    api.pay(order_id)
    assert len(page.get(f"orders/{order_id}")["steps"]) == 3


# </webhooks>


# -- when something is away ------------------------------------------------------------------


def test_without_redis_the_page_shows_what_sql_knows(migrated_url: str) -> None:
    with serving(migrated_url, f"redis://127.0.0.1:{free_port()}/0") as api:
        page = Page(api)
        order_id = (api.place().json or {})["id"]
        state = page.get("state")
        assert state["redis"] == {"answers": False}
        assert [each["id"] for each in state["sql"]["next"]] == [order_id]
        assert page.get(f"orders/{order_id}")["order"]["id"] == order_id
        refused = page.ask("GET", f"letters?queue={QUEUE}")
        assert (refused.status_code, (refused.json or {})["code"]) == (503, "queue_unavailable")
        assert page.ask("POST", "pause", PAUSE).status_code == 200, "SQL keeps it"
        assert page.ask("POST", "resume", {"queue": QUEUE}).status_code == 200


def test_without_sql_the_page_shows_what_redis_knows(
    api: Api, page: Page, monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis
) -> None:
    DelayQueue(redis_client, QUEUE).schedule("a", 2**50)

    def gone(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("", {}, OSError("gone"), connection_invalidated=True)

    page.get("state")
    for engine in (api.services.engine, api.services.watching):
        monkeypatch.setattr(engine, "connect", gone)
    monkeypatch.setattr("orders.caches.monotonic", lambda: time.monotonic() + 3600)
    state = page.get("state")
    assert state["sql"] == {"answers": False}
    assert state["redis"]["queues"][0]["scheduled"] == 1
    refused = page.ask("POST", "pause", PAUSE)
    assert (refused.status_code, (refused.json or {})["code"]) == (503, "storage_unavailable")


def test_a_database_without_a_schema_is_shown_as_away(api: Api, page: Page) -> None:
    with api.services.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders RENAME TO elsewhere"))
    assert page.get("state")["sql"] == {"answers": False}


# -- mending ---------------------------------------------------------------------------------


def test_the_newest_dead_letters_are_listed_with_the_reason(
    page: Page, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    bury_now(queue, *(f"a-{n}" for n in range(120)))
    bury_now(queue, "b-1", error=ValueError("no such mug"))
    letters = page.get(f"letters?queue={QUEUE}")["letters"]
    assert [each["id"] for each in letters] == ["b-1", *(f"a-{n}" for n in range(119, 20, -1))]
    assert letters[0]["error"] == "ValueError: no such mug"
    assert "ValueError: no such mug" in letters[0]["traceback"]
    assert page.get("letters?queue=webhooks")["letters"] == []  # <webhooks/>


def test_a_check_that_died_cancels_its_order_once_it_is_requeued(
    api: Api, page: Page, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    order_id = (api.place().json or {})["id"]
    wait_until(lambda: queue.look_up(order_id), "the check to be scheduled")
    queue.cancel(order_id)
    bury_now(queue, order_id)
    expire(api, order_id, -1)
    page.ask("POST", "letters/requeue", {"queue": QUEUE, "ids": [order_id]})

    def status() -> str:
        return str(api.services.orders.order(None, order_id).status)

    with running(Worker([timeout_flow(api.services)], api.services.settings.redis_url)):
        wait_until(lambda: status() == "cancelled", "the order to be cancelled")


def test_dead_letters_are_requeued_and_purged(page: Page, redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    bury_now(queue, "a", "b", "c\udc80")
    for verb, ids in (("requeue", ["a", "nobody"]), ("purge", ["c\udc80"])):
        with capture_logs() as logs:
            answer = page.ask("POST", f"letters/{verb}", {"queue": QUEUE, "ids": ids})
        assert (answer.status_code, answer.json) == (200, {"done": 1})
        [line] = [each for each in logs if each["event"] == "operator"]
        assert (line["action"], line["client"], line["letters"]) == (verb, "ops", 1)
    seen = page.queue()
    assert (seen["scheduled"], seen["dead"]) == (1, 1)


def test_a_request_names_a_bounded_number_of_a_queues_letters(page: Page) -> None:
    for body in (
        {"queue": QUEUE, "ids": ["a"] * 101},
        {"queue": QUEUE, "ids": []},
        {"queue": "other", "ids": ["a"]},
        {"queue": QUEUE},
    ):
        assert page.ask("POST", "letters/purge", body).status_code == 422
    for query in ("queue=other", f"queue={QUEUE}&more=1", ""):
        assert page.ask("GET", f"letters?{query}").status_code in (400, 422)
    for path in ("search?text=%00", "search?text=a%00b"):
        assert page.ask("GET", path).status_code == 400
    for method, path, sent in (
        ("POST", "letters/requeue", {"queue": QUEUE, "ids": ["\ud800"]}),
        ("POST", "letters/purge", {"queue": QUEUE, "ids": ["a", "\udfff"]}),
    ):
        assert page.ask(method, path, sent).status_code == 422


# <webhooks>
def test_a_queue_is_paused_and_resumed(page: Page) -> None:
    why = {"queue": WEBHOOK_QUEUE, "reason": "an endpoint is flooded"}
    assert page.ask("POST", "pause", why).status_code == 200
    assert page.queue(WEBHOOK_QUEUE)["paused"]
    assert re.fullmatch(
        r"paused by ops, key \S+ since .*: an.*", page.queue(WEBHOOK_QUEUE)["pause"]
    )
    assert not page.queue(QUEUE)["paused"]
    assert page.ask("POST", "resume", {"queue": WEBHOOK_QUEUE}).status_code == 200
    assert not page.queue(WEBHOOK_QUEUE)["paused"]


# </webhooks>


@pytest.mark.parametrize("reason", UNREADABLE, ids=ascii)
def test_why_something_was_stopped_is_one_line(page: Page, reason: str) -> None:
    assert page.ask("POST", "pause", {**PAUSE, "reason": reason}).status_code in (400, 422)
    assert not page.queue()["paused"]


def test_refunds_due_of_all_clients_are_listed_and_marked(api: Api, page: Page) -> None:
    paid = []
    for client in ("customer", "other"):
        headers = {"Idempotency-Key": uuid4().hex}
        body = {"items": [{"sku": "tea", "quantity": 1}]}
        order_id = (api.send("POST", "/v1/orders", body, key=client, headers=headers).json or {})[
            "id"
        ]
        payment = {
            "provider": "bank",
            "reference": f"tx-{client}",
            "amount_minor": 1,
            "currency": "EUR",
        }
        answer = api.send("POST", f"/v1/orders/{order_id}/payments", payment, key=client)
        paid.append((answer.json or {})["id"])
    found = page.get("refunds")
    assert [each["id"] for each in found["refunds"]] == paid
    assert [each["client"] for each in found["refunds"]] == ["customer", "other"]
    assert page.get("state")["sql"]["refunds"]["sums"][0]["payments"] == 2
    refused = page.ask("POST", f"refunds/{paid[1]}", {"reference": "re-1"})
    assert (refused.status_code, (refused.json or {})["detail"].endswith("scope payments.")) == (
        403,
        True,
    )
    api.keys["both"] = api.services.clients.create_key("ops", ["ops", "payments"])
    page.key = "both"
    for _ in range(2):  # repeating it changes nothing
        assert page.ask("POST", f"refunds/{paid[1]}", {"reference": "re-1"}).status_code == 200
    assert [each["id"] for each in page.get("refunds")["refunds"]] == paid[:1]
    known = api.services.orders.payments(
        api.services.clients.id_of("other"), status="refunded", page_size=9
    )
    assert [each.refund_reference for each in known] == ["re-1"]
    key_id, _ = parted(api.keys["both"])
    done = api.services.orders.events(None, known[0].order_id, after_id=0, page_size=9)
    assert [each.key_id for each in done if each.type == "payment.refunded"] == [key_id]
    refused = page.ask("POST", f"refunds/{paid[1]}", {"reference": "re-2"})
    assert (refused.status_code, (refused.json or {})["code"]) == (409, "already_refunded")
    assert page.ask("POST", f"refunds/{uuid4()}", {"reference": "re-2"}).status_code == 404


# -- stop cancellations ----------------------------------------------------------------------


# <freezes>
def test_cancellations_are_stopped_prolonged_and_thawed(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    why = {"reason": "the card terminal is down", "seconds": 3600}
    with capture_logs() as logs:
        made = page.ask("POST", "freezes", why)
    freeze_id = (made.json or {})["id"]
    assert [line["action"] for line in logs if line["event"] == "operator"] == ["freeze"]
    [shown] = page.get("state")["panels"]["freezes"]
    assert (shown["id"], shown["reason"], shown["state"]) == (freeze_id, why["reason"], "open")
    assert re.fullmatch(r"ops, key \S+", shown["opened_by"])
    assert (shown["scope"], shown["orders"]) == ("everything", 1)
    assert 3_500_000 < shown["left_ms"] <= 3_600_000
    assert page.ask("PATCH", f"freezes/{freeze_id}", {"seconds": 60}).status_code == 200
    [shown] = page.get("state")["panels"]["freezes"]
    assert shown["left_ms"] <= 60_000
    assert page.ask("DELETE", f"freezes/{freeze_id}").status_code == 200
    [shown] = page.get("state")["panels"]["freezes"]
    assert (shown["state"], shown["left_ms"]) == ("thawing", 0)
    again = page.ask("PATCH", f"freezes/{freeze_id}", {"seconds": 60})
    assert (again.status_code, (again.json or {})["code"]) == (409, "freeze_ended")
    assert page.get(f"orders/{order_id}")["order"]["status"] == "unpaid"


@pytest.mark.parametrize(
    ("scope", "told"), [({}, 0), ({"client": "customer"}, 0), ({"client": "other"}, 1)]
)
def test_what_a_freeze_holds_is_not_overdue_all_else_is(
    scope: dict[str, str], told: int, api: Api, page: Page
) -> None:
    expire(api, (api.place().json or {})["id"], -7000)
    made = page.ask("POST", "freezes", {"reason": "why", "seconds": 60, **scope})
    assert made.status_code == 201
    sql = page.get("state")["sql"]
    assert sql["overdue"]["count"] == told
    assert [each["frozen"] for each in sql["next"]] == [not told]


# </freezes>


def nap(connection: sa.Connection, **_: object) -> Any:
    """Instead of a statement."""
    return connection.exec_driver_sql("SELECT pg_sleep(60)")


def test_the_rest_is_shown_if_counting_takes_long(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lookups.SQL.statements, "list_overdue", nap)
    sql = page.get("state")["sql"]
    assert (sql["answers"], sql["overdue"], sql["next"]) == (True, None, [])


# <freezes>
@pytest.mark.parametrize("slow", ["count_concerned", "list_in_force"])
def test_a_freeze_is_told_although_its_orders_take_long_to_count(
    slow: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.ask("POST", "freezes", {"reason": "why", "seconds": 60})
    monkeypatch.setitem(SQL.statements, slow, nap)
    told = page.get("state")["panels"]["freezes"]
    if slow == "list_in_force":
        assert told is None, "not that there are none"
    else:
        assert [(each["reason"], each["orders"]) for each in told] == [("why", None)]


# </freezes>


def test_the_runbook_comes_with_the_page(page: Page) -> None:
    """The page links each problem to its entry."""
    script = (STATIC / "overview.js").read_text()
    entries = {*re.findall(r'"([A-Z][a-z]+[A-Z]\w+)"', script)}
    text = page.ask("GET", "static/runbook.md").text
    assert len(entries) >= 7
    assert {entry for entry in entries if f"\n### {entry}\n" not in text} == set()
