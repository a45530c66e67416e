"""What every request and response gets at the door."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import pytest
import sqlalchemy as sa
from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.testing import capture_logs

from devtools.processes import free_port, wait_until
from devtools.valkey import Valkey
from orders.clients.domain import parted
from orders.clients.rate_limits import WRONG_KEYS_BURST
from orders.order.bulkhead import Bulkhead
from orders.sql.tables import stock_items
from tests.conftest import Api, serving
from tests.integration.test_providers import Provider

#: The origin of requests of the operators' page.
HERE = {"Origin": "http://localhost"}
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def test_every_response_names_its_request(api: Api) -> None:
    names = [
        api.send("GET", path, key=key).headers["X-Request-ID"]
        for path, key in (("/healthz", None), ("/v1/orders", None), ("/v1/orders", "customer"))
    ]
    names += [api.send("GET", "/nowhere").headers["X-Request-ID"]]
    assert all(UUID7.fullmatch(name) for name in names)
    assert len({*names}) == len(names)


@pytest.mark.parametrize("name", ["a", "trace-1.2:3_4", "x" * 64])
def test_a_name_that_the_caller_gave_is_kept(api: Api, name: str) -> None:
    response = api.send("GET", "/v1/orders", headers={"X-Request-ID": name})
    assert response.headers["X-Request-ID"] == name


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\tb", "\u00fc", "a;b"])
def test_a_name_that_could_break_a_log_is_replaced(api: Api, name: str) -> None:
    response = api.send("GET", "/v1/orders", headers={"X-Request-ID": name})
    assert UUID7.fullmatch(response.headers["X-Request-ID"])


def test_what_is_logged_during_a_request_has_its_name(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_more: object) -> None:
        raise sa.exc.InvalidRequestError("a bug")

    monkeypatch.setattr(api.services.orders, "orders", broken)
    with capture_logs(processors=[merge_contextvars]) as logs:
        refused = api.send("GET", "/v1/orders", headers={"X-Request-ID": "trace-1"})
    assert refused.status_code == 500
    assert refused.headers["X-Request-ID"] == "trace-1"
    [line] = [line for line in logs if line["event"] == "unexpected error"]
    assert line["request_id"] == "trace-1"


def test_one_requests_name_is_not_the_nexts(api: Api) -> None:
    api.send("GET", "/healthz", headers={"X-Request-ID": "first"})
    api.send("GET", "/healthz")
    assert get_contextvars().get("request_id") != "first"


def test_pages_load_nothing_from_elsewhere_and_stand_in_no_frame(api: Api) -> None:
    with api.send("GET", "/docs", key=None) as page:
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'self'; script-src 'self'; " in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["X-Frame-Options"] == "DENY"
        assert page.headers["Referrer-Policy"] == "no-referrer"
    answer = api.send("GET", "/v1/orders")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Security-Policy" not in answer.headers


@pytest.mark.usefixtures("frozen_limits")
def test_a_key_used_too_often_is_refused_and_others_are_not(
    migrated_url: str, valkey: Valkey
) -> None:
    with serving(migrated_url, valkey.url, rate_limit_per_second=1, rate_limit_burst=20) as api:
        answers = [api.send("GET", "/v1/orders") for _ in range(100)]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert [answer.status_code for answer in answers].count(200) == 20
        last = answers[-1]
        assert last.content_type == "application/problem+json"
        assert last.get_json()["code"] == "too_many_requests"
        assert last.headers["Retry-After"] == str(last.get_json()["retry_after"]) == "1"
        assert api.send("GET", "/v1/orders", key="other").status_code == 200
        assert api.send("GET", "/healthz", key=None).status_code == 200


@pytest.mark.usefixtures("frozen_limits")
def test_limits_do_not_depend_on_redis(migrated_url: str) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with serving(migrated_url, nobody, rate_limit_per_second=1, rate_limit_burst=20) as api:
        answers = [api.send("GET", "/v1/orders").status_code for _ in range(100)]
        assert {*answers} == {200, 429}


def test_guessing_keys_ends_in_refusals_that_cost_no_query(
    migrated_url: str, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine: guessing is faster than what is left grows.
    monkeypatch.setattr("orders.clients.rate_limits.WRONG_KEYS_PER_SECOND", 1)
    with serving(migrated_url, valkey.url, trusted_proxies=1) as api:
        assert api.send("GET", "/v1/orders").status_code == 200
        asked = 0
        read = api.services.clients._read

        def counted(key_id: str) -> object:
            nonlocal asked
            asked += 1
            return read(key_id)

        monkeypatch.setattr(api.services.clients, "_read", counted)

        def guess(address: str) -> int:
            # What stands before the proxy's own entry is the guesser's.
            sent = {
                "Authorization": f"Bearer {uuid4()}.x",
                "X-Forwarded-For": f"9.9.9.9, {address}",
            }
            return api.send("GET", "/v1/orders", key=None, headers=sent).status_code

        answers = [guess("192.0.2.1") for _ in range(5 * WRONG_KEYS_BURST)]
        assert {*answers} == {401, 429}
        assert asked == answers.count(401)
        assert guess("192.0.2.2") == 401
        # A valid key works from there all the same, whether this process has seen it or not, and
        # wrong secrets of one cost no query while it is cached.
        from_there = {"X-Forwarded-For": "192.0.2.1"}
        for key in ("customer", "other"):
            api.services.clients._cached._entries.clear()
            assert api.send("GET", "/v1/orders", key=key, headers=from_there).status_code == 200
        asked = 0
        stolen = parted(api.keys["other"])[0]
        wrong = {**from_there, "Authorization": f"Bearer {stolen}.x"}
        for _ in range(9):
            assert api.send("GET", "/v1/orders", key=None, headers=wrong).status_code == 401
        assert asked == 0


@pytest.mark.usefixtures("frozen_limits")
def test_without_a_proxy_nobody_chooses_their_address(api: Api) -> None:
    def guess(address: str) -> int:
        sent = {"Authorization": f"Bearer {uuid4()}.x", "X-Forwarded-For": address}
        return api.send("GET", "/v1/orders", key=None, headers=sent).status_code

    assert 429 in [guess(f"192.0.2.{n % 250}") for n in range(5 * WRONG_KEYS_BURST)]


def test_one_locked_sku_takes_half_of_the_threads(migrated_url: str, valkey: Valkey) -> None:
    """Others that want it are refused before they wait in SQL; other SKUs are sold."""
    patient = {"lock_timeout_seconds": 60, "statement_timeout_seconds": 60}
    with (
        serving(migrated_url, valkey.url, database_pool_size=6, **patient) as api,
        ThreadPoolExecutor(12) as pool,
    ):
        api.stock("mug")
        with api.services.engine.begin() as other:
            tea = sa.select(stock_items).filter_by(sku="tea").with_for_update()
            other.execute(tea)
            waiting = [pool.submit(api.place) for _ in range(12)]
            wait_until(lambda: sum(each.done() for each in waiting) == 9, "nine to be refused")
            refused = [each.result() for each in waiting if each.done()]
            assert {answer.get_json()["code"] for answer in refused} == {"stock_busy"}
            assert {answer.status_code for answer in refused} == {503}
            assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
            assert api.place(items=[{"sku": "mug", "quantity": 1}]).status_code == 201
            assert sum(each.done() for each in waiting) == 9
        answers = [each.result().status_code for each in waiting]
        assert sorted(answers) == [201] * 3 + [503] * 9
        assert api.place().status_code == 201


@pytest.mark.parametrize("full", ["receiving", "receiving_signed", "receiving_logins"])
def test_slow_senders_of_one_kind_refuse_no_other(api: Api, full: str) -> None:
    """Requests with a key, signed reports, logins: strangers can send the last ones as slowly as they like."""
    provider = Provider(api)
    order_id = (api.place().json or {})["id"]
    bulkhead: Bulkhead = getattr(api.services, full)
    with ExitStack() as slow:
        for _ in range(bulkhead._most):
            slow.enter_context(bulkhead.enter(["body"]))
        login = api.http.post("/ops/session", json={"key": api.keys["ops"]}, headers=HERE)
        statuses = {
            "receiving": api.place().status_code,
            "receiving_signed": provider.paid(order_id).status_code,
            "receiving_logins": login.status_code,
        }
    fine = {"receiving": 201, "receiving_signed": 200, "receiving_logins": 200}
    assert statuses == {**fine, full: 503}
