"""What keeps one caller from taking the API away from the others."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.clients.domain import parted
from orders.db.tables import stock_items
from orders.features.throttling.bulkhead import Bulkhead
from orders.features.throttling.feature import Receiving
from orders.features.throttling.rate_limits import WRONG_KEYS_BURST
from tests.kit.api import Api, serving
from tests.providers.provider import Provider  # <providers/>


@pytest.fixture
def frozen_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes for rate limits: what is used up does not come back, however slow the machine."""
    monkeypatch.setattr("throttled.utils.now_mono_f", lambda: 1000.0)


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


def test_guessing_keys_ends_in_refusals_that_cost_no_query(
    migrated_url: str, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine: guessing is faster than what is left grows.
    monkeypatch.setattr("orders.features.throttling.rate_limits.WRONG_KEYS_PER_SECOND", 1)
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


# <providers>
@pytest.mark.parametrize("full", ["keys", "signatures"])
def test_slow_senders_of_one_kind_refuse_no_other(api: Api, full: str) -> None:
    """Requests with a key, and signed reports."""
    provider = Provider(api)
    order_id = (api.place().json or {})["id"]
    bulkhead: Bulkhead = getattr(api.services[Receiving], full)
    with ExitStack() as slow:
        for _ in range(bulkhead._most):
            slow.enter_context(bulkhead.enter(["body"]))
        statuses = {
            "keys": api.place().status_code,
            "signatures": provider.paid(order_id).status_code,
        }
    fine = {"keys": 201, "signatures": 200}
    assert statuses == {**fine, full: 503}


# </providers>
