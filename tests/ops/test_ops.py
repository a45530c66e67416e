"""The operators' page: who may use it, what it shows, and what it mends."""

import json
import re
import time
from typing import Any
from urllib.parse import quote
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
from orders.features.ops.filters import ago, countdown, money
from orders.features.ops.lookups import NEXT
from orders.features.ops.problems import UNKNOWN
from orders.features.ops.routes import POLICY, STATIC
from orders.features.parts import up_to
from orders.features.webhooks.domain import WEBHOOK_QUEUE  # <webhooks/>
from orders.queues import QUEUE
from orders.timeouts import timeout_flow
from tests.kit.api import Api, serving
from tests.kit.expiring import expire_now
from tests.kit.moments import later, now
from tests.kit.queue_steps import bury_now
from tests.kit.workers import running
from tests.ops.page import Page, View
from worker import DelayQueue, Worker
from worker.queue.replies import Settlement, Verb

MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
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
    assert Page(api).get().text("client") == "ops"


def test_the_page_loads_only_its_own_files_and_nothing_is_kept(api: Api, page: Page) -> None:
    with api.http.get("/ops") as shell:
        assert shell.status_code == 200
        assert shell.headers["Content-Security-Policy"] == POLICY
        assert shell.headers["X-Frame-Options"] == "DENY"
        html = shell.get_data(as_text=True)
    assert "<script>" not in html
    assert "style=" not in html
    assert " on" + "click" not in html
    files = re.findall(r'(?:src|href)="(/ops/static/[^"]+)"', html)
    assert len(files) >= 4
    for path in files:
        with api.http.get(path) as file:
            assert file.status_code == 200, path
            assert file.headers["Content-Security-Policy"] == POLICY
    assert "/ops/static/freezes.css" in files  # <freezes/>
    assert page.ask("GET", "view/overview").headers["Cache-Control"] == "no-store"
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


def left_ms(shown: View, order_id: str) -> int:
    """How much time an order has left, as the script is told."""
    return int(shown[f"next-{order_id}"][-1].get("data-ms", "nothing"))


def test_an_order_that_is_being_paid_is_not_overdue(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    expire(api, order_id, -7000)
    with api.services.engine.begin() as connection:
        until = sa.update(unpaid_orders).values(kept_until=later(now(), "ms"))
        connection.execute(until, {"ms": 60_000})
    shown = page.get()
    assert shown.tiles()["Overdue"] == ["0", "none"]
    assert 50_000 < left_ms(shown, order_id) <= 60_000


def test_an_overdue_order_whose_check_is_put_off_is_told_with_the_reason(
    api: Api, page: Page, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    order_id = (api.place().json or {})["id"]
    wait_until(lambda: queue.look_up(order_id), "the check to be scheduled")
    expire(api, order_id, -7000)
    queue.beat("w-1", {"up": True})
    told = r"1 unpaid order is overdue, the oldest by [78] s\."
    [shown] = page.problems(told)
    assert (shown.level, re.fullmatch(told, shown.text) is not None) == ("bad", True)
    queue.schedule(order_id, 1)
    [task] = queue.claim(1, 60_000).tasks
    refused = OSError("connection refused")
    queue.settle([Settlement([task], Verb.FAILED, 600_000, refused)])
    put_off = r" 1 put off: failed 1 time: OSError: connection refused; next try in \d+ s\."
    [shown] = page.problems(told)
    assert (shown.level, shown.entry) == ("warn", "OrdersOverdue")
    assert re.fullmatch(told + put_off, shown.text)


def test_an_overdue_order_is_told_behind_many_being_paid(api: Api, page: Page) -> None:
    paying = [(api.place().json or {})["id"] for _ in range(NEXT)]
    for order_id in paying:
        expire(api, order_id, -9000)
    with api.services.engine.begin() as connection:
        until = sa.update(unpaid_orders).values(kept_until=later(now(), "ms"))
        connection.execute(until, {"ms": 60_000})
    expire(api, (api.place().json or {})["id"], -7000)
    assert page.get().tiles()["Overdue"] in (["1", f"oldest by {n} s"] for n in (7, 8))


def test_orders_are_shown_as_they_wait_are_overdue_and_end(api: Api, page: Page) -> None:
    first = (api.place(client_reference="A-1").json or {})["id"]
    second = (api.place().json or {})["id"]
    shown = page.get()
    assert (shown.tiles()["Unpaid"][0], shown.tiles()["Overdue"][0]) == ("2", "0")
    assert (shown.ids("next"), shown.ids("latest")) == ([first, second], [])
    assert shown.texts(f"next-{first}")[:3] == ["A-1", "customer", "2.50 EUR"]
    assert 1_700_000 < left_ms(shown, first) <= 1_800_000
    expire(api, second, -7000)
    shown = page.get()
    assert shown.tiles()["Overdue"] in (["1", f"oldest by {n} s"] for n in (7, 8))
    assert shown.ids("next") == [second, first]
    assert re.fullmatch("[78] s late", shown.texts(f"next-{second}")[-1])
    expire_now(api.services.orders, [second])
    shown = page.get()
    assert (shown.tiles()["Unpaid"][0], shown.tiles()["Overdue"][0]) == ("1", "0")
    assert shown.ids("latest") == [second]
    assert re.fullmatch(r"\d+ s", shown.texts(f"latest-{second}")[-1])


def test_a_cancellation_on_request_is_not_late(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    assert page.get().ids("latest") == []


def test_queues_and_workers_are_shown(page: Page, redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    queue.schedule_many([("due", 1, b""), ("later", 2**50, b"")])
    queue.beat("w-1", {"up": True, "holds": 2, "oldest_seconds": 0.5})
    assert page.queue() == ["running", "2", "1", "0", "0", "now"]
    [worker] = page.get()["workers"]
    assert [each.text for each in worker][:4] == ["w-1", QUEUE, "busy for 500 ms", "2"]


def test_an_order_is_found_by_its_id_or_its_clients_reference(api: Api, page: Page) -> None:
    ids = [(api.place(client_reference="A-17").json or {})["id"] for _ in range(2)]
    ids.append((api.place(key="other", client_reference="A-17").json or {})["id"])
    assert {*page.get("find?text=A-17").ids("found")} == {*ids}
    assert page.get(f"find?text={ids[0].upper()}").ids("found") == [ids[0]]
    for nothing in ("A-1", str(uuid4()), "%25"):
        assert page.get(f"find?text={nothing}").ids("found") == []


def test_an_orders_story_has_events_and_payments(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    shown = page.get(f"order/{order_id}")
    assert shown.texts("order-facts")[1] == order_id
    assert shown.texts("timeline", "*/div/strong") == ["order.created"]
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    api.pay(order_id)
    assert page.get(f"order/{order_id}").texts("timeline", "*/div") == [
        "order.created",
        "order.cancelledon request",
        "payment.refund_due",
        "payment refund due2.50 EUR by bank, r-1",
    ]
    assert page.get(f"order/{uuid4()}", 404).text("failed") == "There is no such order."


# <webhooks>
def test_an_orders_story_has_its_webhooks(api: Api, page: Page) -> None:
    hook = api.send("POST", "/v1/webhooks", {"url": "https://shop.example/hook"}).json or {}
    order_id = (api.place().json or {})["id"]
    sent = "webhook order.created pendinghttps://shop.example/hook"
    [_, step] = page.get(f"order/{order_id}").texts("timeline", "*/div")
    assert re.fullmatch(rf"{sent}, next attempt 2\d{{3}}-.* UTC", step)
    api.send("PATCH", f"/v1/webhooks/{hook['id']}", {"paused": True})
    [_, step] = page.get(f"order/{order_id}").texts("timeline", "*/div")
    assert step == f"{sent}, its webhook is paused"
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    api.pay(order_id)
    steps = page.get(f"order/{order_id}").texts("timeline", "*[@class='sent']")
    assert len(steps) == 3


# </webhooks>


# -- when something is away ------------------------------------------------------------------


def test_without_redis_the_page_shows_what_sql_knows(migrated_url: str) -> None:
    with serving(migrated_url, f"redis://127.0.0.1:{free_port()}/0") as api:
        page = Page(api)
        order_id = (api.place().json or {})["id"]
        shown = page.get()
        assert shown.text("no-queues") == shown.text("no-workers") == "Redis does not answer."
        assert shown.tiles()["Dead letters"] == [UNKNOWN, "no Redis"]
        assert [each.entry for each in page.problems()] == ["RedisUnavailable"]
        assert shown.ids("next") == [order_id]
        assert page.get(f"order/{order_id}").texts("order-facts")[1] == order_id
        assert page.get("dead", 503).text("failed") == "Redis does not answer."
        assert page.ask("POST", "pause", PAUSE).status_code == 200, "SQL keeps it"
        assert page.ask("POST", "resume", {"queue": QUEUE}).status_code == 200


def test_without_sql_the_page_shows_what_redis_knows(
    api: Api, page: Page, monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis
) -> None:
    DelayQueue(redis_client, QUEUE).schedule("a", 2**50)

    def gone(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("", {}, OSError("gone"), connection_invalidated=True)

    page.get()
    for engine in (api.services.engine, api.services.watching):
        monkeypatch.setattr(engine, "connect", gone)
    monkeypatch.setattr("orders.caches.monotonic", lambda: time.monotonic() + 3600)
    assert page.get().tiles()["Unpaid"] == [UNKNOWN, "no database"]
    assert page.queue()[:2] == ["running", "1"]
    assert page.get("refunds", 503).text("failed") == "The database does not answer."
    refused = page.ask("POST", "pause", PAUSE)
    assert (refused.status_code, (refused.json or {})["code"]) == (503, "storage_unavailable")


def test_a_database_without_a_schema_is_shown_as_away(api: Api, page: Page) -> None:
    with api.services.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders RENAME TO elsewhere"))
    assert page.problems()[0].entry == "DatabaseUnavailable"
    assert page.get().tiles()["Unpaid"] == [UNKNOWN, "no database"]


# -- mending ---------------------------------------------------------------------------------


def test_the_newest_dead_letters_are_listed_with_the_reason(
    page: Page, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    bury_now(queue, *(f"a-{n}" for n in range(120)))
    bury_now(queue, "b-1", error=ValueError("no such mug"))
    shown = page.get("dead")
    newest = ["b-1", *(f"a-{n}" for n in range(119, 20, -1))]
    assert shown.texts("letters", "*/td[2]") == newest
    [why] = shown.texts(f"letter-{QUEUE}-b-1", ".//pre")
    assert why == "b-1 ValueError: no such mug"
    assert page.get(f"dead?queue={QUEUE}").texts("letters", "*/td[2]") == newest
    assert page.get("dead?queue=webhooks").texts("letters") == []  # <webhooks/>


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
    boxes = page.get("dead")["letters"].iterfind(".//input")
    assert [json.loads(each.get("value", "")) for each in boxes] == ["c\udc80", "b", "a"]
    for verb, ids in (("requeue", ["a", "nobody"]), ("purge", ["c\udc80"])):
        with capture_logs() as logs:
            answer = page.ask("POST", f"letters/{verb}", {"queue": QUEUE, "ids": ids})
        assert (answer.status_code, answer.json) == (200, {"done": 1})
        [line] = [each for each in logs if each["event"] == "operator"]
        assert (line["action"], line["client"], line["letters"]) == (verb, "ops", 1)
    assert page.queue()[:-1] == ["running", "1", "1", "0", "1"]


def test_a_request_names_a_bounded_number_of_a_queues_letters(page: Page) -> None:
    for body in (
        {"queue": QUEUE, "ids": ["a"] * 101},
        {"queue": QUEUE, "ids": []},
        {"queue": "other", "ids": ["a"]},
        {"queue": QUEUE},
    ):
        assert page.ask("POST", "letters/purge", body).status_code == 422
    for path in ("dead?queue=other", "dead?more=1", "find", "find?text=%00", "find?text=a%00b"):
        assert page.ask("GET", f"view/{path}").status_code == 400
    for method, path, sent in (
        ("POST", "letters/requeue", {"queue": QUEUE, "ids": ["\ud800"]}),
        ("POST", "letters/purge", {"queue": QUEUE, "ids": ["a", "\udfff"]}),
    ):
        assert page.ask(method, path, sent).status_code == 422


# <webhooks>
def test_a_queue_is_paused_and_resumed(page: Page) -> None:
    why = {"queue": WEBHOOK_QUEUE, "reason": "an endpoint is flooded"}
    assert page.ask("POST", "pause", why).status_code == 200
    assert page.queue(WEBHOOK_QUEUE)[0] == "paused"
    told = rf"{WEBHOOK_QUEUE} is paused by ops, key \S+ since .*: an endpoint is flooded\."
    [shown] = page.problems(told)
    assert (shown.level, shown.entry) == ("warn", "QueuePaused")
    assert page.queue(QUEUE)[0] == "running"
    assert page.ask("POST", "resume", {"queue": WEBHOOK_QUEUE}).status_code == 200
    assert page.queue(WEBHOOK_QUEUE)[0] == "running"


# </webhooks>


@pytest.mark.parametrize("reason", UNREADABLE, ids=ascii)
def test_why_something_was_stopped_is_one_line(page: Page, reason: str) -> None:
    assert page.ask("POST", "pause", {**PAUSE, "reason": reason}).status_code in (400, 422)
    assert page.queue()[0] == "running"


def test_refunds_due_of_all_clients_are_listed_and_marked(api: Api, page: Page) -> None:
    paid = []
    for client in ("customer", "other"):
        order_id = (api.place(key=client).json or {})["id"]
        answer = api.pay(order_id, f"tx-{client}", key=client, amount_minor=1)
        paid.append((answer.json or {})["id"])
    shown = page.get("refunds")
    assert shown.ids("refund-rows") == paid
    assert shown.texts("refund-rows", "*/td[2]") == ["customer", "other"]
    assert (shown.text("refund-count"), page.get().tiles()["Refunds due"][0]) == ("2", "2")
    refused = page.ask("POST", f"refunds/{paid[1]}", {"reference": "re-1"})
    assert (refused.status_code, (refused.json or {})["detail"].endswith("scope payments.")) == (
        403,
        True,
    )
    api.keys["both"] = api.services.clients.create_key("ops", ["ops", "payments"])
    page.key = "both"
    for _ in range(2):  # repeating it changes nothing
        assert page.ask("POST", f"refunds/{paid[1]}", {"reference": "re-1"}).status_code == 200
    assert page.get("refunds").ids("refund-rows") == paid[:1]
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
    shown = page.get()
    [freeze] = shown["freezes"]
    [text] = shown.texts("freezes")
    opened = rf"Stopped by ops, key \S+, {MOMENT}\. Ends {MOMENT}\."
    assert re.match(
        rf"\d+:\d\d(:\d\d)? No order is cancelled by timeout · 1 order {why['reason']} {opened}",
        text,
    )
    assert "stop-button" not in shown
    assert 3_500_000 < int(freeze[0].get("data-ms", "0")) <= 3_600_000
    assert page.ask("PATCH", f"freezes/{freeze_id}", {"seconds": 60}).status_code == 200
    [freeze] = page.get()["freezes"]
    assert (freeze.get("id"), freeze[0].get("role")) == (f"freeze-{freeze_id}", "timer")
    assert int(freeze[0].get("data-ms", "0")) <= 60_000
    assert page.ask("DELETE", f"freezes/{freeze_id}").status_code == 200
    shown = page.get()
    assert shown.texts("freezes", "*/div/p/strong") == ["Giving back time"]
    assert (f"thaw-{freeze_id}" in shown, "stop-button" in shown) == (False, True)
    again = page.ask("PATCH", f"freezes/{freeze_id}", {"seconds": 60})
    assert (again.status_code, (again.json or {})["code"]) == (409, "freeze_ended")
    assert page.get(f"order/{order_id}").text("order-status") == "unpaid"


@pytest.mark.parametrize(
    ("scope", "told"), [({}, 0), ({"client": "customer"}, 0), ({"client": "other"}, 1)]
)
def test_what_a_freeze_holds_is_not_overdue_all_else_is(
    scope: dict[str, str], told: int, api: Api, page: Page
) -> None:
    expire(api, (api.place().json or {})["id"], -7000)
    made = page.ask("POST", "freezes", {"reason": "why", "seconds": 60, **scope})
    assert made.status_code == 201
    shown = page.get()
    assert shown.tiles()["Overdue"][0] == str(told)
    assert [text == "frozen" for text in shown.texts("next", "*/td[4]")] == [not told]


# </freezes>


def nap(connection: sa.Connection, **_: object) -> Any:
    """Instead of a statement."""
    return connection.exec_driver_sql("SELECT pg_sleep(60)")


def test_the_rest_is_shown_if_counting_takes_long(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lookups.SQL.statements, "list_overdue", nap)
    shown = page.get()
    assert (shown.tiles()["Overdue"], shown.ids("next")) == ([UNKNOWN, "not known"], [])
    assert [each.level for each in page.problems()] == ["bad", "warn"], "the worst first"
    assert page.problems("It is not known how many orders are overdue: ")


# <freezes>
@pytest.mark.parametrize("slow", ["count_concerned", "list_in_force"])
def test_a_freeze_is_told_although_its_orders_take_long_to_count(
    slow: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.ask("POST", "freezes", {"reason": "why", "seconds": 60})
    monkeypatch.setitem(SQL.statements, slow, nap)
    told = page.get().texts("freezes", "*/div/p")[:2]
    if slow == "list_in_force":
        assert told == []
        assert page.problems("It is not known whether cancellations are stopped: ")
    else:
        assert told == ["No order is cancelled by timeout · orders not counted", "why"]


# </freezes>


def test_the_runbook_comes_with_the_page(page: Page) -> None:
    """The page links each problem to its entry."""
    modules = (STATIC.parent / "problems.py", STATIC.parents[1] / "parts.py")
    source = "".join(each.read_text() for each in modules)
    linked = {*re.findall(r'"([A-Z][a-z]+[A-Z]\w+)"', source)}
    assert len(linked) >= 7
    for entry in linked:
        assert page.get(f"runbook?entry={entry}").text("runbook-heading") == entry
    assert page.get("runbook?entry=other").text("runbook-heading") == "Runbook"
    shown = page.get("runbook?entry=HandlerTooSlow")
    assert shown.texts("runbook-text", "*/a") == ["WorkerFailing"]
    assert "<!--" not in page.ask("GET", "view/runbook").text


def test_what_others_wrote_is_shown_as_text(
    api: Api, page: Page, redis_client: redis.Redis
) -> None:
    hostile = "<img/src=x\"'>{{7*7}}"
    order_id = (api.place(client_reference=hostile).json or {})["id"]
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    api.pay(order_id, hostile)
    api.place(client_reference=hostile)
    page.ask("POST", "pause", {**PAUSE, "reason": hostile})
    page.ask("POST", "freezes", {"reason": hostile, "seconds": 60})  # <freezes/>
    queue = DelayQueue(redis_client, QUEUE)
    queue.beat(hostile, {"started_at": hostile})
    bury_now(queue, hostile, error=ValueError(hostile))
    found = f"find?text={quote(hostile)}"
    for path in ("overview", "dead", "refunds", found, f"order/{order_id}"):
        shown = page.get(path)
        assert hostile in shown.text("main"), path
        texts = [page.ask("GET", f"view/{path}").text]
        texts += [each.get("data-act", "") for each in shown["main"].iterfind(".//button")]
        assert not [text for text in texts if "<img" in text], path


def test_numbers_money_and_times_are_as_people_read_them() -> None:
    assert [up_to(count, 1000) for count in (0, 999, 1000)] == ["0", "999", "1,000+"]
    money_of = [money(1_234_567, currency) for currency in ("EUR", "JPY", "KWD")]
    assert money_of == ["12,345.67 EUR", "1,234,567 JPY", "1,234.567 KWD"]
    left = [countdown(ms) for ms in (-5, 1, 6_001, 1_799_000, 3_600_000)]
    assert left == ["0:00", "0:01", "0:07", "29:59", "1:00:00"]
    past = [ago(ms) for ms in (-1, 999, 1999, 200_000)]
    assert past == ["just now", "just now", "1 s ago", "3 min ago"]
