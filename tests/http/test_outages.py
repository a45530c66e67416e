"""Without Redis the API works; without SQL it says so; and it recovers from both by itself."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
import redis
from structlog.testing import capture_logs
from werkzeug.test import TestResponse

from devtools.postgres import Postgres
from devtools.processes import free_port, wait_until
from devtools.valkey import Valkey
from orders.queues import QUEUE
from orders.wiring import READY_SECONDS
from tests.kit.api import Api, serving
from tests.kit.clock import bound
from tests.kit.databases import upgrade
from worker import DelayQueue, connect

#: How long a customer may wait for an answer while Redis gives none.
STEP_SECONDS = 2
PAYMENT = {"provider": "bank", "reference": "r-1", "amount_minor": 250, "currency": "EUR"}


@pytest.fixture
def private_valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A Valkey to break."""
    server = Valkey(tmp_path / "valkey").start()
    yield server
    server.stop()


def ready(api: Api) -> tuple[int, Any]:
    """What it says now, not a second ago."""
    api.services.readiness.forget()
    response = api.send("GET", "/readyz", key=None)
    return response.status_code, json.loads(response.get_data())


def lives_without_redis(api: Api) -> None:
    """The whole life of an order, no step of which waits for Redis for long."""

    def timed(step: Any) -> TestResponse:
        began = time.monotonic()
        response: TestResponse = step()
        assert time.monotonic() - began < bound(STEP_SECONDS)
        return response

    placed = timed(lambda: api.place("key-1"))
    assert placed.status_code == 201
    order_id = json.loads(placed.get_data())["id"]
    shown = timed(lambda: api.send("GET", f"/v1/orders/{order_id}"))
    assert json.loads(shown.get_data()) == json.loads(placed.get_data())
    assert timed(lambda: api.place("key-1")).headers["Idempotent-Replayed"] == "true"
    assert timed(lambda: api.pay(order_id)).status_code == 201
    other = json.loads(timed(api.place).get_data())["id"]
    assert timed(lambda: api.send("POST", f"/v1/orders/{other}/cancel")).status_code == 200
    status, report = ready(api)
    assert (status, report["status"], report["redis"]) == (200, "degraded", "unavailable")


def test_many_who_ask_whether_it_is_ready_cost_one_look(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Redis that hangs, 30 callers would otherwise occupy every thread."""
    now, ends = [100.0], threading.Event()
    ping = Mock(side_effect=partial(ends.wait, 10))
    monkeypatch.setattr("orders.caches.monotonic", lambda: now[0])

    def ask(_: object = None) -> int:
        return api.app.test_client().get("/readyz").status_code

    assert ask() == 200
    monkeypatch.setattr(api.services.redis, "ping", ping)
    assert {*map(ask, range(9))} == {200}
    assert not ping.called
    now[0] += READY_SECONDS
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(ask)
        wait_until(lambda: ping.called, "one request to look")
        assert {*map(ask, range(30))} == {200}
        ends.set()
        assert looking.result() == 200
    assert ping.call_count == 1


def test_a_bug_in_the_check_costs_one_look_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Mock(side_effect=ZeroDivisionError("a secret"))
    monkeypatch.setattr("orders.wiring.check_ready", broken)
    report = {"status": "unavailable", "database": "unavailable", "redis": "ok"}
    assert ready(api) == (503, report)
    assert api.send("GET", "/readyz", key=None).status_code == 503
    assert broken.call_count == 1


@pytest.mark.clock
def test_orders_are_placed_paid_and_cancelled_if_redis_refuses(migrated_url: str) -> None:
    with serving(migrated_url, f"redis://127.0.0.1:{free_port()}/0") as api:
        lives_without_redis(api)


@pytest.mark.clock
def test_orders_are_placed_paid_and_cancelled_with_redis_frozen(
    migrated_url: str, private_valkey: Valkey
) -> None:
    with serving(migrated_url, private_valkey.url) as api:
        assert ready(api) == (200, {"status": "ready", "database": "ok", "redis": "ok"})
        assert api.place().status_code == 201  # over a connection that the freeze then hits
        process = private_valkey.process
        assert process is not None
        process.signal(signal.SIGSTOP)
        lives_without_redis(api)
        process.signal(signal.SIGCONT)
        wait_until(lambda: ready(api)[1]["status"] == "ready", "Redis to answer again")


def refused(client: Any) -> bool:
    """Whether the server refused something for want of memory."""
    return "errorstat_OOM" in client.info("errorstats")


def test_orders_placed_while_redis_is_full_are_scheduled_later(
    migrated_url: str, private_valkey: Valkey
) -> None:
    client = connect(private_valkey.url)
    queue = DelayQueue(client, QUEUE)
    with serving(migrated_url, private_valkey.url) as api:
        client.config_set("maxmemory", "1")
        assert api.place().status_code == 201
        wait_until(lambda: refused(client), "the check to be refused")
        client.config_set("maxmemory", "0")
        assert queue.stats().scheduled == 0
        assert api.place().status_code == 201
        wait_until(lambda: queue.stats().scheduled == 1, "the check to be scheduled")
        private_valkey.kill()
        assert api.place().status_code == 201
        private_valkey.start()
        order_id = json.loads(api.place().get_data())["id"]
        wait_until(
            lambda: client.zscore(queue.keys.scheduled, order_id), "the check to be scheduled"
        )
    client.close()


@contextmanager
def serving_from(server: Postgres, database: str, valkey: Valkey) -> Iterator[Api]:
    server.execute(f"CREATE DATABASE {database}")
    url = server.url(database)
    upgrade(url)
    with serving(url, valkey.url) as api:
        yield api


def test_every_route_says_when_to_come_back_while_sql_is_down(
    own_postgres: Postgres, redis_client: redis.Redis, valkey: Valkey
) -> None:
    with serving_from(own_postgres, "stopped", valkey) as api:
        order_id = json.loads(api.place("before").get_data())["id"]
        wait_until(redis_client.dbsize, "its check to be scheduled")
        scheduled = redis_client.dbsize()
        own_postgres.stop()
        for method, path, body in (
            ("POST", "/v1/orders", {"items": [{"sku": "tea", "quantity": 1}]}),
            ("GET", "/v1/orders", None),
            ("GET", f"/v1/orders/{order_id}", None),
            ("GET", f"/v1/orders/{order_id}/events", None),
            ("POST", f"/v1/orders/{order_id}/payments", PAYMENT),
            ("POST", f"/v1/orders/{order_id}/cancel", None),
            ("GET", "/v1/stock/tea", None),
        ):
            response = api.send(method, path, body, headers={"Idempotency-Key": "during"})
            assert response.status_code == 503
            assert response.content_type == "application/problem+json"
            assert int(response.headers["Retry-After"]) > 0
            problem = json.loads(response.get_data())
            assert problem["code"] == "storage_unavailable"
            assert "127.0.0.1" not in problem["detail"]
        status, report = ready(api)
        assert (status, report["status"], report["redis"]) == (503, "unavailable", "ok")
        assert api.send("GET", "/healthz", key=None).status_code == 200
        assert redis_client.dbsize() == scheduled

        own_postgres.start()
        assert ready(api)[0] == 200
        again = api.place("before")
        assert again.headers["Idempotent-Replayed"] == "true"
        assert json.loads(again.get_data())["id"] == order_id
        first = api.place("during")
        assert first.status_code == 201
        assert "Idempotent-Replayed" not in first.headers


def test_a_read_only_server_serves_reads_and_says_when_to_retry(
    own_postgres: Postgres, valkey: Valkey
) -> None:
    with serving_from(own_postgres, "api_read_only", valkey) as api:
        order_id = json.loads(api.place().get_data())["id"]
        own_postgres.execute("ALTER DATABASE api_read_only SET default_transaction_read_only = on")
        api.services.engine.dispose()
        refused = api.place()
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
        assert json.loads(refused.get_data())["code"] == "storage_unavailable"
        assert api.send("GET", f"/v1/orders/{order_id}").status_code == 200
        status, report = ready(api)
        assert (status, report["status"]) == (503, "unavailable")
        assert "read-only" in report["database"]

        # A connection that is open now stays as it is; once it has refused, a new one is made.
        assert api.send("GET", f"/v1/orders/{order_id}").status_code == 200
        own_postgres.execute("ALTER DATABASE api_read_only RESET default_transaction_read_only")
        assert api.place().status_code == 503
        assert api.place().status_code == 201
        assert ready(api)[0] == 200


def test_connections_that_died_while_idle_cost_no_request(
    own_postgres: Postgres, valkey: Valkey
) -> None:
    with serving_from(own_postgres, "killed", valkey) as api:
        order_id = json.loads(api.place().get_data())["id"]
        own_postgres.kill()
        own_postgres.start()
        assert api.send("GET", f"/v1/orders/{order_id}").status_code == 200
        assert api.place().status_code == 201


def test_a_busy_database_is_a_503(migrated_url: str, valkey: Valkey) -> None:
    with serving(migrated_url, valkey.url, database_pool_size=1) as api:
        with api.services.engine.connect():  # the pool's only connection
            response = api.place()
        assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
        assert api.place().status_code == 201


def test_a_database_without_the_schema_is_not_ready(database_url: str, valkey: Valkey) -> None:
    api = Api(database_url, valkey.url)
    status, report = ready(api)
    assert (status, report["status"], report["redis"]) == (503, "unavailable", "ok")
    assert "python -m orders migrate" in report["database"]
    assert "alembic_version" not in report["database"], "what its server answered is for the log"
    assert api.send("GET", "/healthz", key=None).status_code == 200
    upgrade(database_url)
    assert ready(api) == (200, {"status": "ready", "database": "ok", "redis": "ok"})
    with api.services.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM alembic_version")
    status, report = ready(api)
    api.close()
    assert (status, report["status"]) == (503, "unavailable")
    assert "It has none" in report["database"]


def test_without_the_schema_requests_get_503_and_a_log_line(
    database_url: str, valkey: Valkey
) -> None:
    api = Api(database_url, valkey.url)
    api.keys["customer"] = f"{uuid4()}.{'x' * 43}"
    with capture_logs() as logs:
        response = api.send("GET", "/v1/orders")
    assert (response.status_code, response.get_json()["code"]) == (503, "storage_unavailable")
    [line] = [line for line in logs if line["event"] == "storage unavailable"]
    assert "run python -m orders migrate" in line["error"]
    assert "exc_info" not in line
    api.close()


def test_health_needs_nothing() -> None:
    gone = free_port()
    api = Api(f"postgresql+psycopg://nobody@127.0.0.1:{gone}/none", f"redis://127.0.0.1:{gone}/0")
    response = api.send("GET", "/healthz", key=None)
    assert (response.status_code, response.get_data()) == (200, b'{"status":"ok"}\n')
    status, report = ready(api)
    assert (status, report["status"], report["redis"]) == (503, "unavailable", "unavailable")
    unauthenticated = api.send("GET", f"/v1/orders/{uuid4()}", key=None)
    assert unauthenticated.status_code == 401
    api.close()
