"""The operators' page: who may use it, what it shows, and what it mends."""

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa
from structlog.testing import capture_logs
from werkzeug.test import TestResponse

from devtools.processes import free_port, wait_until
from orders.app import create_app
from orders.clients.domain import parted
from orders.config import Settings
from orders.freezes import repository as freezes
from orders.http.schemas.paging import encoded
from orders.ops import repository, sessions
from orders.ops.lookups import NEXT
from orders.ops.routes import POLICY, STATIC, Tools
from orders.ops.schemas import MAX_TASK_ID
from orders.queues import QUEUE, WEBHOOK_QUEUE
from orders.sql.expressions import later, now
from orders.sql.ids import new_id
from orders.sql.tables import ops_sessions, unpaid_orders
from orders.timeouts import timeout_flow
from tests.conftest import Api, serving
from tests.expiring import expire_now
from tests.integration.workers import running
from worker import DelayQueue, Worker
from worker.queue.replies import Put

HERE = "http://localhost"
PAUSE = {"queue": QUEUE, "reason": "a restore"}
#: What nobody can read in one line.
UNREADABLE = ["", "x" * 201, "a\x00b", "two\nlines", "a\x9bb", "a\u2028b", "a\u202eb", "a\ud800b"]


def bury(queue: DelayQueue, *ids: str, error: Exception | None = None) -> None:
    """Make dead letters of tasks that failed once."""
    for task_id in ids:
        queue.schedule(task_id, 1)
        queue.retry([(queue.claim(1, 60_000).tasks[0], 0)], Put.FAILED)
        [task] = queue.claim(1, 60_000).tasks
        queue.dead_letter([(task, "it will not do", error)])


class Page:
    """The page in a browser of its own: it keeps the cookie, and sends what a script of ours sends."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.http = api.app.test_client()
        self.token = ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> TestResponse:
        sent = {"Origin": HERE, "X-CSRF-Token": self.token, **headers}
        given = {name: value for name, value in sent.items() if value}
        return self.http.open(
            f"/ops/{path}", method=method, json=body, headers=given, buffered=True
        )

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.get_data()
        return answer.json

    def log_in(self, key: str = "ops") -> TestResponse:
        answer = self.ask("POST", "session", {"key": self.api.keys[key]})
        if answer.status_code == 200:
            self.token = (answer.json or {})["token"]
        return answer

    def queue(self, name: str = QUEUE) -> Any:
        [found] = [each for each in self.get("state")["redis"]["queues"] if each["name"] == name]
        return found


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown is never from before."""
    for name in ("lookups.FRESH_SECONDS", "lookups.SLOW_SECONDS", "queues.FRESH_SECONDS"):
        monkeypatch.setattr(f"orders.ops.{name}", 0.0)


@pytest.fixture
def page(api: Api) -> Page:
    made = Page(api)
    assert made.log_in().status_code == 200
    return made


def routes(api: Api) -> list[tuple[str, str]]:
    """Every route of the page but its files and the login, with something for each parameter."""
    files = {"/ops", "/ops/static/<name>"}
    return [
        (
            method,
            rule.rule.removeprefix("/ops/")
            .replace("<uuid:order_id>", str(uuid4()))
            .replace("<uuid:payment_id>", str(uuid4()))
            .replace("<uuid:freeze_id>", str(uuid4())),
        )
        for rule in api.app.url_map.iter_rules()
        if rule.rule.startswith("/ops") and rule.rule not in files
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if (method, rule.rule) != ("POST", "/ops/session")
    ]


# -- who may ---------------------------------------------------------------------------------


def test_nothing_is_shown_to_whoever_is_not_logged_in(api: Api) -> None:
    stranger = Page(api)
    assert len(routes(api)) >= 14
    for method, path in routes(api):
        for key in (None, *api.keys):
            headers = {"Authorization": f"Bearer {api.keys[key]}"} if key else {}
            refused = stranger.ask(method, path, {} if method == "POST" else None, **headers)
            assert (refused.status_code, (refused.json or {})["code"]) == (401, "login_required"), (
                path
            )


def test_a_key_without_the_scope_does_not_log_in(api: Api) -> None:
    stranger = Page(api)
    refused = stranger.log_in("customer")
    assert (refused.status_code, (refused.json or {})["code"]) == (403, "forbidden")
    assert "Set-Cookie" not in refused.headers
    assert stranger.ask("GET", "state").status_code == 401


def test_a_wrong_key_does_not_log_in(api: Api) -> None:
    api.keys["wrong"] = api.keys["ops"][:-1]
    refused = Page(api).log_in("wrong")
    assert (refused.status_code, (refused.json or {})["code"]) == (401, "login_required")
    assert "Set-Cookie" not in refused.headers


def test_the_cookie_is_kept_from_scripts_and_contains_no_key(api: Api) -> None:
    cookie = Page(api).log_in().headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/ops", f"Max-Age={8 * 3600}"} <= {
        *cookie.split("; ")
    }
    assert "Secure" not in cookie
    assert not {*api.keys["ops"].split(".")} & {*re.split("[.=;]", cookie)}


def test_who_reads_the_database_cannot_make_a_cookie(api: Api, page: Page) -> None:
    cookie = page.http.get_cookie(sessions.COOKIE, path="/ops")
    assert cookie is not None
    with api.services.engine.begin() as connection:
        [stored] = connection.execute(sa.select(ops_sessions))
    session_id, _, token = cookie.value.partition(".")
    assert session_id == stored.id
    assert token not in map(str, stored)
    page.http.set_cookie(sessions.COOKIE, f"{stored.id}.{stored.secret_hash}", path="/ops")
    assert page.ask("GET", "state").status_code == 401
    # Nor the token that changes need.
    assert page.token not in map(str, stored)


def test_over_https_the_cookie_stays_there(api: Api) -> None:
    answer = Page(api).http.post(
        "/ops/session",
        json={"key": api.keys["ops"]},
        headers={"Origin": "https://localhost"},  # as behind a proxy that ends TLS
    )
    assert "; Secure" in answer.headers["Set-Cookie"]


def test_a_session_is_known_to_every_process_until_it_ends(
    api: Api, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.caches.CACHE_SECONDS", 0.2)
    settings: Settings = api.services.settings
    other = create_app(settings)
    client = other.test_client()
    cookie = page.http.get_cookie(sessions.COOKIE, path="/ops")
    assert cookie is not None
    client.set_cookie(sessions.COOKIE, cookie.value, path="/ops")
    assert (client.get("/ops/session").json or {})["client"] == "ops"
    assert page.ask("DELETE", "session").status_code == 200
    page.http.set_cookie(sessions.COOKIE, cookie.value, path="/ops")
    assert page.ask("GET", "state").status_code == 401
    wait_until(lambda: client.get("/ops/state").status_code == 401, "the other process to see it")
    other.extensions["orders"].close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cookie: cookie[:-2],
        lambda cookie: f"{uuid4()}.{cookie.partition('.')[2]}",
        lambda cookie: cookie.rpartition(".")[0],
        lambda _: "nonsense",
        lambda _: "a.b.c.d",
        lambda cookie: f"{cookie.partition('.')[0]}.\u0661",
    ],
    ids=["token", "session", "no token", "word", "parts", "digits"],
)
def test_a_cookie_that_was_changed_is_none(page: Page, spoil: Callable[[str], str]) -> None:
    cookie = page.http.get_cookie(sessions.COOKIE, path="/ops")
    assert cookie is not None
    page.http.set_cookie(sessions.COOKIE, quote(spoil(cookie.value), safe="."), path="/ops")
    assert page.ask("GET", "state").status_code == 401


def test_a_session_ends_after_a_shift(
    api: Api, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = (page.get("session"))["expires_in_seconds"]
    assert sessions.SECONDS - 60 < left <= sessions.SECONDS
    ended = sa.update(ops_sessions).values(expires_at=now())
    with api.services.engine.begin() as connection:
        connection.execute(ended)
    with monkeypatch.context() as later_on:  # what is cached ends by this process's clock
        at = time.time() + sessions.SECONDS
        later_on.setattr(time, "time", lambda: at)
        assert page.ask("GET", "state").status_code == 401
    api.keys["colleague"] = api.services.clients.create_key("ops", ["ops"])
    assert Page(api).log_in("colleague").status_code == 200
    with api.services.engine.begin() as connection:
        [_] = connection.execute(sa.select(ops_sessions))  # the one that ended is gone


def test_a_revoked_key_ends_its_sessions(api: Api, page: Page) -> None:
    page.get("state")
    api.services.clients.revoke(parted(api.keys["ops"])[0])
    assert page.ask("GET", "state").status_code == 401


def test_logging_out_ends_the_session_not_only_the_cookie(api: Api, page: Page) -> None:
    cookie = page.http.get_cookie(sessions.COOKIE, path="/ops")
    assert cookie is not None
    other = Page(api)
    other.log_in()
    assert page.ask("DELETE", "session").status_code == 200
    assert page.http.get_cookie(sessions.COOKIE, path="/ops") is None
    assert page.ask("GET", "session").status_code == 401
    page.http.set_cookie(sessions.COOKIE, cookie.value, path="/ops")
    assert page.ask("GET", "session").status_code == 401
    other.get("state")


@pytest.mark.usefixtures("frozen_limits")
def test_guessing_keys_ends_in_refusals(api: Api) -> None:
    stranger = Page(api)
    api.keys["wrong"] = f"{uuid4()}.x"
    answers = {stranger.log_in("wrong").status_code for _ in range(300)}
    assert answers == {401, 429}


@pytest.mark.usefixtures("frozen_limits")
def test_guesses_from_an_operators_address_lock_nobody_out(
    api: Api, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where TRUSTED_PROXIES is too low, everybody has the proxy's address."""
    stranger = Page(api)
    api.keys["wrong"] = f"{uuid4()}.x"
    while stranger.log_in("wrong").status_code != 429:
        pass
    monkeypatch.setattr("orders.caches.CACHE_SECONDS", 0.0)  # nothing is cached for long
    for _ in range(2):
        page.get("state")
    # Nor whoever this process sees for the first time.
    api.app.extensions["ops"] = Tools(api.services)
    page.get("state")
    assert Page(api).log_in().status_code == 200


# -- other sites -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": "wrong"},
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_another_site_changes_nothing(page: Page, headers: dict[str, str]) -> None:
    refused = page.ask("POST", "pause", PAUSE, **headers)
    assert (refused.status_code, (refused.json or {})["code"]) == (403, "not_from_this_page")
    assert not page.queue()["paused"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ""},
        {"Origin": "http://["},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_another_site_logs_nobody_in(api: Api, headers: dict[str, str]) -> None:
    refused = Page(api).ask("POST", "session", {"key": api.keys["ops"]}, **headers)
    assert refused.status_code == 403
    assert "Set-Cookie" not in refused.headers


def test_every_route_that_changes_something_needs_the_token(api: Api, page: Page) -> None:
    page.token = ""
    changing = [(method, path) for method, path in routes(api) if method != "GET"]
    assert len(changing) >= 6
    for method, path in changing:
        assert page.ask(method, path, {}).status_code == 403, path


def test_the_page_loads_only_its_own_files_and_nothing_is_kept(api: Api, page: Page) -> None:
    with api.http.get("/ops") as shell:
        assert shell.status_code == 200
        assert shell.headers["Content-Security-Policy"] == POLICY
        assert shell.headers["X-Frame-Options"] == "DENY"
        html = shell.get_data(as_text=True)
    assert "<script>" not in html
    assert "style=" not in html
    assert " on" + "click" not in html
    with api.http.get("/ops/static/main.js") as script:
        assert script.mimetype == "text/javascript"
        assert script.headers["Content-Security-Policy"] == POLICY
    assert page.ask("GET", "state").headers["Cache-Control"] == "no-store"
    with api.http.get("/ops/static/../routes.py") as other:
        assert other.status_code == 404


def test_the_page_is_undocumented_and_no_api_key_opens_it(api: Api) -> None:
    document: Any = api.http.get("/openapi.json").json
    assert not [path for path in document["paths"] if path.startswith("/ops")]
    assert not {"LoginIn", "LettersIn"} & document["components"]["schemas"].keys()


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
    queue.retry([(task, 600_000)], Put.FAILED, errors={order_id: refused})
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


def test_an_orders_story_has_events_payments_and_webhooks(api: Api, page: Page) -> None:
    hook = api.send("POST", "/v1/webhooks", {"url": "https://shop.example/hook"}).json or {}
    order_id = (api.place().json or {})["id"]
    story = page.get(f"orders/{order_id}")
    assert story["order"]["id"] == order_id
    assert [each["type"] for each in story["events"]] == ["order.created"]
    assert [(each["type"], each["status"]) for each in story["deliveries"]] == [
        ("order.created", "pending")
    ]
    assert story["deliveries"][0]["url"] == "https://shop.example/hook"
    assert not story["deliveries"][0]["paused"]
    api.send("PATCH", f"/v1/webhooks/{hook['id']}", {"paused": True})
    assert page.get(f"orders/{order_id}")["deliveries"][0]["paused"]
    api.services.orders.cancel(api.services.clients.id_of("customer"), order_id)
    api.pay(order_id)
    story = page.get(f"orders/{order_id}")
    assert [each["type"] for each in story["events"]] == [
        "order.created",
        "order.cancelled",
        "payment.refund_due",
    ]
    assert [each["status"] for each in story["payments"]] == ["refund_due"]
    assert len(story["deliveries"]) == 3
    assert page.ask("GET", f"orders/{uuid4()}").status_code == 404


# -- when something is away ------------------------------------------------------------------


def test_without_redis_the_page_shows_what_sql_knows(migrated_url: str) -> None:
    with serving(migrated_url, f"redis://127.0.0.1:{free_port()}/0") as api:
        page = Page(api)
        assert page.log_in().status_code == 200
        order_id = (api.place().json or {})["id"]
        state = page.get("state")
        assert state["redis"] == {"answers": False}
        assert [each["id"] for each in state["sql"]["next"]] == [order_id]
        assert page.get(f"orders/{order_id}")["order"]["id"] == order_id
        for path in ("letters?queue=webhooks", "letter?queue=webhooks&id=x"):
            refused = page.ask("GET", path)
            assert (refused.status_code, (refused.json or {})["code"]) == (503, "queue_unavailable")
        assert page.ask("POST", "pause", PAUSE).status_code == 200, "SQL keeps it"
        assert page.ask("POST", "resume", {"queue": QUEUE}).status_code == 503, "Redis may, too"


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


def test_dead_letters_are_listed_filtered_and_shown(page: Page, redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    bury(queue, *(f"a-{n}" for n in range(120)))
    bury(queue, "b-1", error=ValueError("no such mug"))
    first = page.get(f"letters?queue={QUEUE}")
    assert [each["id"] for each in first["letters"]][:2] == ["b-1", "a-119"]
    assert first["letters"][0]["error"] == "ValueError: no such mug"
    rest = page.get(f"letters?queue={QUEUE}&cursor={first['next_cursor']}")
    seen = [each["id"] for each in (*first["letters"], *rest["letters"])]
    assert (len(seen), len({*seen}), rest["next_cursor"]) == (121, 121, None)
    matching = page.get(f"letters?queue={QUEUE}&text=NO%20SUCH%20mug")
    assert ([each["id"] for each in matching["letters"]], matching["next_cursor"]) == (
        ["b-1"],
        None,
    )
    assert page.get(f"letters?queue={QUEUE}&text=none")["letters"] == []
    ids = page.get(f"letters?queue={QUEUE}&ids=1")
    assert (len(ids["letters"]), ids["letters"][0], ids["next_cursor"]) == (121, "b-1", None)
    whole = page.get(f"letter?queue={QUEUE}&id=b-1")["letter"]
    assert "ValueError: no such mug" in whole["traceback"]
    assert page.get(f"letter?queue={QUEUE}&id=nobody")["letter"] is None
    assert page.get("letters?queue=webhooks")["letters"] == []


def test_no_letter_is_skipped_when_others_come_and_go(
    page: Page, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    bury(queue, *(f"a-{n}" for n in range(30)), *(f"b-{n}" for n in range(98)))
    bury(queue, "\u8336" * MAX_TASK_ID, "c\udc80")
    first = page.get(f"letters?queue={QUEUE}")
    seen = [each["id"] for each in first["letters"]]
    assert (seen[:2], seen[-1]) == (["c\udc80", "\u8336" * MAX_TASK_ID], "b-0")
    for verb, ids in (("requeue", ["b-0", "a-29"]), ("purge", ["b-1", "a-28"])):
        assert page.ask("POST", f"letters/{verb}", {"queue": QUEUE, "ids": ids}).json == {"done": 2}
    bury(queue, *(f"new-{n}" for n in range(40)))
    rest = page.get(f"letters?queue={QUEUE}&cursor={first['next_cursor']}")
    assert [each["id"] for each in rest["letters"]] == [f"a-{n}" for n in reversed(range(28))]


def test_a_cursor_of_another_list_is_refused(page: Page, redis_client: redis.Redis) -> None:
    bury(DelayQueue(redis_client, QUEUE), *(f"a-{n}" for n in range(101)))
    cursor = page.get(f"letters?queue={QUEUE}")["next_cursor"]
    ends = ("-1", "x", "", "10", "1 ", " a", f"1 {'a' * (MAX_TASK_ID + 1)}", "1" * 16 + " a")
    queries = [f"queue={QUEUE}&cursor={encoded(f'{QUEUE} {end}')}" for end in ends]
    queries += [f"queue={WEBHOOK_QUEUE}&cursor={cursor}", f"queue={QUEUE}&cursor=x"]
    for query in queries:
        assert page.ask("GET", f"letters?{query}").status_code == 400, query


def test_a_check_that_died_cancels_its_order_once_it_is_requeued(
    api: Api, page: Page, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    order_id = (api.place().json or {})["id"]
    wait_until(lambda: queue.look_up(order_id), "the check to be scheduled")
    queue.cancel(order_id)
    bury(queue, order_id)
    expire(api, order_id, -1)
    page.ask("POST", "letters/requeue", {"queue": QUEUE, "ids": [order_id]})

    def status() -> str:
        return str(api.services.orders.order(None, order_id).status)

    with running(Worker([timeout_flow(api.services)], api.services.settings.redis_url)):
        wait_until(lambda: status() == "cancelled", "the order to be cancelled")


def test_dead_letters_are_requeued_and_purged(page: Page, redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, QUEUE)
    bury(queue, "a", "b", "c\udc80")
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
        {"queue": QUEUE, "ids": ["a"] * 301},
        {"queue": QUEUE, "ids": []},
        {"queue": "other", "ids": ["a"]},
        {"queue": QUEUE},
    ):
        assert page.ask("POST", "letters/purge", body).status_code == 422
    for query in ("queue=other", "queue=webhooks&passed=1", "queue=webhooks&more=1", ""):
        assert page.ask("GET", f"letters?{query}").status_code in (400, 422)
    for path in ("search?text=%00", "search?text=a%00b"):
        assert page.ask("GET", path).status_code == 400
    for method, path, sent in (
        ("POST", "letters/requeue", {"queue": QUEUE, "ids": ["\ud800"]}),
        ("POST", "letters/purge", {"queue": QUEUE, "ids": ["a", "\udfff"]}),
    ):
        assert page.ask(method, path, sent).status_code == 422


def test_a_queue_is_paused_and_resumed(page: Page, redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, WEBHOOK_QUEUE)
    queue.schedule("a", 1)
    why = {"queue": WEBHOOK_QUEUE, "reason": "an endpoint is flooded"}
    assert page.ask("POST", "pause", why).status_code == 200
    assert page.queue(WEBHOOK_QUEUE)["paused"]
    assert re.fullmatch(
        r"paused by ops, key \S+ since .*: an.*", page.queue(WEBHOOK_QUEUE)["pause"]
    )
    assert not page.queue(QUEUE)["paused"]
    assert queue.claim(1, 1000).tasks == []
    assert page.ask("POST", "resume", {"queue": WEBHOOK_QUEUE}).status_code == 200
    assert len(queue.claim(1, 1000).tasks) == 1


@pytest.mark.parametrize("reason", UNREADABLE, ids=ascii)
def test_why_something_was_stopped_is_one_line(page: Page, reason: str) -> None:
    for path, sent in (("pause", PAUSE), ("freezes", {"seconds": 60})):
        refused = page.ask("POST", path, {**sent, "reason": reason})
        assert refused.status_code in (400, 422), path
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
    first = page.get("refunds?limit=1")
    second = page.get(f"refunds?limit=1&cursor={first['next_cursor']}")
    assert [each["id"] for each in (*first["refunds"], *second["refunds"])] == paid
    refused = page.ask("POST", f"refunds/{paid[1]}", {"reference": "re-1"})
    assert (refused.status_code, (refused.json or {})["detail"].endswith("scope payments.")) == (
        403,
        True,
    )
    api.keys["both"] = api.services.clients.create_key("ops", ["ops", "payments"])
    assert page.log_in("both").status_code == 200
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


def test_cancellations_are_stopped_prolonged_and_thawed(api: Api, page: Page) -> None:
    order_id = (api.place().json or {})["id"]
    concerned = page.get("freezes/concerned?seconds=3600")
    assert concerned["count"] == 1, "it would expire within the hour"
    why = {"reason": "the card terminal is down", "seconds": 3600}
    with capture_logs() as logs:
        made = page.ask("POST", "freezes", why)
    freeze_id = (made.json or {})["id"]
    assert [line["action"] for line in logs if line["event"] == "operator"] == ["freeze"]
    [shown] = page.get("state")["sql"]["freezes"]
    assert (shown["id"], shown["reason"], shown["state"]) == (freeze_id, why["reason"], "open")
    assert re.fullmatch(r"ops, key \S+", shown["opened_by"])
    assert (shown["scope"], shown["orders"]) == ("everything", 1)
    assert 3_500_000 < shown["left_ms"] <= 3_600_000
    assert page.ask("POST", f"freezes/{freeze_id}", {"seconds": 60}).status_code == 200
    [shown] = page.get("state")["sql"]["freezes"]
    assert shown["left_ms"] <= 60_000
    assert page.ask("DELETE", f"freezes/{freeze_id}").status_code == 200
    [shown] = page.get("state")["sql"]["freezes"]
    assert (shown["state"], shown["left_ms"]) == ("thawing", 0)
    again = page.ask("POST", f"freezes/{freeze_id}", {"seconds": 60})
    assert (again.status_code, (again.json or {})["code"]) == (409, "freeze_ended")
    assert page.get(f"orders/{order_id}")["order"]["status"] == "unpaid"


@pytest.mark.parametrize(
    ("scope", "told"),
    [({}, 0), ({"client": "customer"}, 0), ({"client": "other"}, 1)],
)
def test_what_a_freeze_holds_is_not_overdue_all_else_is(
    scope: dict[str, str], told: int, api: Api, page: Page
) -> None:
    expire(api, (api.place().json or {})["id"], -7000)
    made = page.ask("POST", "freezes", {"reason": "why", "seconds": 60, **scope})
    assert made.status_code == 200
    sql = page.get("state")["sql"]
    assert sql["overdue"]["count"] == told
    assert [each["frozen"] for each in sql["next"]] == [not told]


def test_the_rest_is_shown_if_counting_takes_long(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "LIST_OVERDUE", sa.select(sa.func.pg_sleep(60)))
    sql = page.get("state")["sql"]
    assert (sql["answers"], sql["overdue"], sql["next"]) == (True, None, [])


@pytest.mark.parametrize("slow", ["COUNT_CONCERNED", "LIST_IN_FORCE"])
def test_a_freeze_is_told_although_its_orders_take_long_to_count(
    slow: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.ask("POST", "freezes", {"reason": "why", "seconds": 60})
    monkeypatch.setattr(freezes, slow, sa.select(sa.func.pg_sleep(60)))
    told = page.get("state")["sql"]["freezes"]
    if slow == "LIST_IN_FORCE":
        assert told is None, "not that there are none"
    else:
        assert [(each["reason"], each["orders"]) for each in told] == [("why", None)]


def test_cancellations_are_not_stopped_without_a_reason(page: Page) -> None:
    for body in ({"seconds": 60}, {"seconds": 60, "reason": ""}, {"reason": "why"}):
        assert page.ask("POST", "freezes", body).status_code == 422
    assert page.ask("DELETE", f"freezes/{new_id()}").status_code == 404
    assert page.get("state")["sql"]["freezes"] == []


def test_the_runbook_comes_with_the_page(page: Page) -> None:
    """The page links each problem to its entry."""
    script = (STATIC / "overview.js").read_text()
    entries = {*re.findall(r'"([A-Z][a-z]+[A-Z]\w+)"', script)}
    text = page.ask("GET", "static/runbook.md").text
    assert len(entries) >= 7
    assert {entry for entry in entries if f"\n### {entry}\n" not in text} == set()
