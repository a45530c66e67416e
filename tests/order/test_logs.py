"""What the log says of single orders: whose request it was that is at its end now, and nothing secret."""

import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from devtools.processes import wait_until
from orders.features.webhooks.flow import webhook_flow  # <webhooks/>
from orders.timeouts import MOST_LINES, timeout_flow
from tests.kit.api import Api, serving
from tests.kit.expiring import all_due
from tests.kit.receiver import receiving
from worker import Flow, Task

Lines = list[MutableMapping[str, Any]]

#: Makes inserting an order fail with an error that is no outage.
REFUSE = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'no'; END $$;"
    "CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()"
)


@pytest.fixture
def shop(migrated_url: str) -> Iterator[Api]:
    """Orders that are due almost at once, without Redis."""
    timeouts: Any = {"order_timeout_seconds": 0.01, "order_timeout_min_seconds": 0.01}
    timeouts["webhook_allow_private"] = True  # <webhooks/>
    with serving(migrated_url, "redis://127.0.0.1:1", **timeouts) as api:
        yield api


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The service's, at INFO."""
    made = logging.getLogger("orders")
    before = made.level
    made.setLevel(logging.INFO)
    yield made
    made.setLevel(before)


def handled(flow: Flow, *ids: str, attempt: int = 1) -> Lines:
    """What is logged while these are handled, until none is left."""
    left = [*ids]

    def all_done() -> bool:
        tasks = [Task(each, attempt=attempt) for each in left]
        left[:] = [*(flow.handler(tasks) or {})]
        return not left

    with capture_logs() as lines:
        wait_until(all_done, "the orders to be due", every=0.05)
    return [line for line in lines if line["event"] != "changes not sent"]  # there is no Redis


@pytest.mark.usefixtures("logger")
def test_a_cancellations_line_names_the_orders_request(shop: Api) -> None:
    placed: Any = shop.place()
    flow = timeout_flow(shop.services)
    [line] = handled(flow, placed.json["id"], attempt=2)
    assert line.pop("late_ms") >= 0
    assert line == {
        "event": "order cancelled",
        "order": placed.json["id"],
        "attempt": 2,
        "request_id": placed.headers["X-Request-ID"],
        "log_level": "info",
    }


@pytest.mark.usefixtures("logger")
def test_an_order_without_an_origin_is_logged_without_one(shop: Api) -> None:
    placed: Any = shop.place()
    with shop.services.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET origin = NULL"))
    flow = timeout_flow(shop.services)
    [line] = handled(flow, placed.json["id"])
    assert (line["order"], "request_id" in line) == (placed.json["id"], False)


def test_the_orders_of_a_backlog_have_lines_only_if_asked_for(
    shop: Api, logger: logging.Logger
) -> None:
    flow = timeout_flow(shop.services)

    def cancelled(count: int) -> int:
        placed: list[Any] = [shop.place().json for _ in range(count)]
        all_due(shop.services.engine, count)
        return len(handled(flow, *(each["id"] for each in placed)))

    assert cancelled(MOST_LINES + 1) == 0
    logger.setLevel(logging.DEBUG)
    assert cancelled(MOST_LINES + 1) == MOST_LINES + 1
    logger.setLevel(logging.WARNING)
    assert cancelled(1) == 0


# <webhooks>
def told(lines: list[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "webhook not delivered"]


@pytest.mark.usefixtures("logger")
def test_a_failed_webhooks_line_has_its_order_and_no_secret(shop: Api) -> None:
    with receiving() as receiver:
        receiver.status, receiver.text = 500, b"the body of an answer"
        wanted = {"url": f"{receiver.url}?token=hush", "events": ["order.created"]}
        made: Any = shop.send("POST", "/v1/webhooks", wanted).json
        placed: Any = shop.place()
        flow = webhook_flow(shop.services)
        with capture_logs() as lines:
            flow.handler([Task(made["id"])])
            wait_until(lambda: told(lines), "the line")
    [line] = told(lines)
    assert (line["order"], line["status"]) == (placed.json["id"], 500)
    assert line["request_id"] == placed.headers["X-Request-ID"]
    for secret in ("hush", made["secret"], "the body"):
        assert secret not in repr(line)


# </webhooks>


def test_an_sql_error_is_logged_without_its_parameters(shop: Api) -> None:
    with shop.services.engine.begin() as connection:
        connection.exec_driver_sql(REFUSE)
    with capture_logs() as lines:
        placed = shop.place("secret-key", metadata={"note": "a private note"})
    assert placed.status_code == 500
    [line] = [line for line in lines if line["event"] == "unexpected error"]
    assert "INSERT INTO orders" in line["exception"]
    for secret in ("secret-key", "a private note", shop.keys["customer"]):
        assert secret not in repr(line)
