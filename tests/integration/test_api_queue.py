"""The queues over HTTP: counts, and dead letters that are listed, requeued and deleted."""

from typing import Any
from urllib.parse import quote

import pytest
import redis
from structlog.testing import capture_logs
from werkzeug.test import TestResponse

from devtools.processes import free_port, wait_until
from orders.clients.domain import parted
from orders.http.schemas.paging import encoded
from orders.http.schemas.queue import MAX_TASK_ID
from orders.queues import QUEUE, QUEUES, WEBHOOK_QUEUE
from orders.sql.expressions import later, now
from orders.sql.tables import unpaid_orders
from orders.timeouts import timeout_flow
from tests.conftest import Api, serving
from tests.integration.test_api_routes import MOMENT, content, problem
from tests.integration.workers import running
from worker import DelayQueue, Worker
from worker.queue.replies import Put


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    return DelayQueue(redis_client, QUEUE)


def bury(queue: DelayQueue, *ids: str, error: Exception | None = None) -> None:
    """Make dead letters of tasks that failed once."""
    for task_id in ids:
        queue.schedule(task_id, 1)
        queue.retry([(queue.claim(1, 60_000).tasks[0], 0)], Put.FAILED)
        [task] = queue.claim(1, 60_000).tasks
        queue.dead_letter([(task, "it will not do", error)])


def listed(api: Api, more: str = "", name: str = QUEUE) -> Any:
    return content(api.send("GET", f"/v1/queue/dead?queue={name}{more}", key="ops"))


def requeue(api: Api, task_id: str, name: str = QUEUE) -> TestResponse:
    path = f"/v1/queue/dead/{quote(task_id, safe='')}/requeue?queue={name}"
    return api.send("POST", path, key="ops")


def delete(api: Api, task_id: str, name: str = QUEUE) -> TestResponse:
    return api.send("DELETE", f"/v1/queue/dead/{quote(task_id, safe='')}?queue={name}", key="ops")


def ids(page: Any) -> list[str]:
    return [letter["id"] for letter in page["data"]]


# -- counts --------------------------------------------------------------------------------


def test_the_queues_are_counted(api: Api, queue: DelayQueue, redis_client: redis.Redis) -> None:
    bury(queue, "dead")
    queue.schedule_many([("due", 1, b""), ("later", 2**50, b"")])
    DelayQueue(redis_client, WEBHOOK_QUEUE).pause()
    found = content(api.send("GET", "/v1/queue", key="ops"))["data"]
    [checks, webhooks, *others] = found
    ages = {name: checks.pop(name) for name in ("oldest_due_age_ms", "oldest_dead_age_ms")}
    assert checks == {
        "queue": QUEUE,
        "scheduled": 2,
        "due": 1,
        "leased": 0,
        "dead": 1,
        "paused": False,
        "next_due_in_ms": 0,
    }
    assert ages["oldest_due_age_ms"] > 1_000_000
    assert ages["oldest_dead_age_ms"] < 1_000_000
    for each, name in zip(others, QUEUES[2:], strict=True):
        assert each == {**webhooks, "queue": name, "paused": False}
    assert webhooks == {
        "queue": WEBHOOK_QUEUE,
        "scheduled": 0,
        "due": 0,
        "leased": 0,
        "dead": 0,
        "paused": True,
        "next_due_in_ms": None,
        "oldest_due_age_ms": 0,
        "oldest_dead_age_ms": 0,
    }


# -- dead letters --------------------------------------------------------------------------


def test_a_dead_letter_says_why_it_died(api: Api, queue: DelayQueue) -> None:
    bury(queue, "a", error=ValueError("no such order"))
    bury(queue, "b")
    [second, first] = listed(api)["data"]
    assert MOMENT.fullmatch(first.pop("died_at"))
    assert first == {
        "id": "a",
        "reason": "it will not do",
        "error": "ValueError: no such order",
        "failures": 1,
        "deliveries": 0,
    }
    assert (second["id"], second["error"]) == ("b", None)
    assert listed(api, name=WEBHOOK_QUEUE) == {"data": [], "next_cursor": None}


def test_dead_letters_are_paged_newest_first(api: Api, queue: DelayQueue) -> None:
    bury(queue, *(f"a-{n}" for n in range(230)))
    seen: list[str] = []
    page = listed(api, "&limit=70")
    sizes = [len(page["data"])]
    seen += ids(page)
    while page["next_cursor"] is not None:
        page = listed(api, f"&limit=70&cursor={page['next_cursor']}")
        sizes.append(len(page["data"]))
        seen += ids(page)
    assert seen == [f"a-{n}" for n in reversed(range(230))]
    assert sizes == [70, 70, 70, 20]


def test_no_letter_is_skipped_when_others_come_and_go(api: Api, queue: DelayQueue) -> None:
    bury(queue, *(f"a-{n}" for n in range(30)), "\u8336" * MAX_TASK_ID, "b\udc80", "c")
    first = listed(api, "&limit=3")
    assert [len(each) for each in ids(first)] == [1, 2, MAX_TASK_ID]
    for n in range(5):
        assert requeue(api, f"a-{2 * n + 20}").status_code == 204
        assert delete(api, f"a-{2 * n + 21}").status_code == 204
    bury(queue, *(f"new-{n}" for n in range(40)))
    rest = listed(api, f"&limit=100&cursor={first['next_cursor']}")
    assert (ids(rest), rest["next_cursor"]) == ([f"a-{n}" for n in reversed(range(20))], None)


def test_a_cursor_of_another_list_is_refused(api: Api, queue: DelayQueue) -> None:
    bury(queue, "a", "b")
    cursor = listed(api, "&limit=1")["next_cursor"]
    ends = ("-1", "x", "", "10", "1 ", " a", f"1 {'a' * (MAX_TASK_ID + 1)}", "1" * 16 + " a")
    others = [encoded(f"{QUEUE} {end}") for end in ends]
    queries = [f"queue={WEBHOOK_QUEUE}&cursor={cursor}"]
    queries += [f"queue={QUEUE}&cursor={each}" for each in (*others, "x")]
    queries += ["", "queue=other", f"queue={QUEUE}&limit=101", f"queue={QUEUE}&more=1"]
    for query in queries:
        problem(api.send("GET", f"/v1/queue/dead?{query}", key="ops"), 400, "bad_request")


def test_letters_that_are_not_unicode_are_shown_all_the_same(api: Api, queue: DelayQueue) -> None:
    bury(queue, "a\udc80", error=ValueError("\ud800 and \udc80"))
    [letter] = listed(api)["data"]
    assert (letter["id"], letter["error"]) == ("a?", "ValueError: ? and ?")


# -- requeued and deleted ------------------------------------------------------------------


@pytest.mark.parametrize("task_id", ["a", "a b", "%2", "...", "\u00fc?&#", "a" * MAX_TASK_ID])
def test_a_requeued_letter_is_due_again_and_starts_afresh(
    api: Api, queue: DelayQueue, task_id: str
) -> None:
    bury(queue, task_id)
    with capture_logs() as logs:
        answer = requeue(api, task_id)
    assert (answer.status_code, answer.get_data()) == (204, b"")
    assert listed(api)["data"] == []
    [again] = queue.claim(1, 60_000).tasks
    assert (again.id, again.failures) == (task_id, 0)
    [line] = [each for each in logs if each["event"] == "operator"]
    key = parted(api.keys["ops"])[0]
    assert (line["action"], line["client"], line["key"]) == ("requeue", "ops", key)
    assert (line["queue"], line["task_id"]) == (QUEUE, task_id)


def test_a_deleted_letter_is_gone(api: Api, queue: DelayQueue) -> None:
    bury(queue, "a", "b")
    with capture_logs() as logs:
        answer = delete(api, "a")
    assert (answer.status_code, answer.get_data()) == (204, b"")
    assert ids(listed(api)) == ["b"]
    assert (queue.look_up("a"), queue.stats().scheduled) == (None, 0)
    [line] = [each for each in logs if each["event"] == "operator"]
    assert (line["action"], line["client"], line["task_id"]) == ("purge", "ops", "a")


def test_what_is_no_dead_letter_is_neither_requeued_nor_deleted(
    api: Api, queue: DelayQueue
) -> None:
    bury(queue, "dead", "done")
    queue.schedule("waiting", 2**50)
    assert requeue(api, "done").status_code == 204
    before = queue.stats(now_ms=0)
    for change in (requeue, delete):
        for task_id in ("nobody", "waiting", "done", "a" * (MAX_TASK_ID + 1), "\x00"):
            problem(change(api, task_id), 404, "dead_letter_not_found")
        problem(change(api, "dead", WEBHOOK_QUEUE), 404, "dead_letter_not_found")
        for name in ("other", "", f"{QUEUE}&more=1"):
            problem(change(api, "dead", name), 400, "bad_request")
    assert queue.stats(now_ms=0) == before


def test_a_check_that_died_cancels_its_order_once_it_is_requeued(
    api: Api, queue: DelayQueue
) -> None:
    order_id = content(api.place())["id"]
    wait_until(lambda: queue.look_up(order_id), "the check to be scheduled")
    queue.cancel(order_id)
    bury(queue, order_id)
    overdue = (
        unpaid_orders.update()
        .where(unpaid_orders.c.order_id == order_id)
        .values(expires_at=later(now(), "ms"))
    )
    with api.services.engine.begin() as connection:
        connection.execute(overdue, {"ms": -1})
    assert requeue(api, order_id).status_code == 204

    def status() -> str:
        return str(content(api.send("GET", f"/v1/orders/{order_id}"))["status"])

    flow = timeout_flow(api.services)
    with running(Worker([flow], api.services.settings.redis_url)):
        wait_until(lambda: status() == "cancelled", "the order to be cancelled")


# -- who may, and when Redis is away ---------------------------------------------------------


def test_customers_keys_neither_see_nor_change_the_queues(api: Api, queue: DelayQueue) -> None:
    bury(queue, "a")
    for method, path in (
        ("GET", "/v1/queue"),
        ("GET", f"/v1/queue/dead?queue={QUEUE}"),
        ("POST", f"/v1/queue/dead/a/requeue?queue={QUEUE}"),
        ("DELETE", f"/v1/queue/dead/a?queue={QUEUE}"),
    ):
        refused = problem(api.send(method, path, key="customer"), 403, "forbidden")
        assert "ops" in refused["detail"]
        problem(api.send(method, path, key=None), 401, "unauthorized")
    assert ids(listed(api)) == ["a"]


def test_without_redis_the_queues_are_unavailable(migrated_url: str) -> None:
    with serving(migrated_url, f"redis://127.0.0.1:{free_port()}/0") as api:
        for answer in (
            api.send("GET", "/v1/queue", key="ops"),
            api.send("GET", f"/v1/queue/dead?queue={QUEUE}", key="ops"),
            requeue(api, "a"),
            delete(api, "a"),
        ):
            problem(answer, 503, "queue_unavailable")
            assert answer.headers["Retry-After"] == "2"
