"""How fast the page at /ops answers when many orders wait and many checks are dead letters.

    python -m benchmarks.page [--waiting 1000000] [--letters 100000] [--repetitions 5]

Every request that the page sends, one after the other, with few orders and with many. The state is cached for
some seconds, so each visit comes after that.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from uuid_utils import uuid7

from benchmarks.dead import bury
from benchmarks.report import Report
from benchmarks.scene import FAR_AWAY_MS, Scene, scene
from devtools.accounts import create_key
from orders.queues import QUEUE

FEW_ORDERS, FEW_LETTERS = 1000, 10
#: Longer than any part of the page's state is cached.
APART_SECONDS = 5.5


def main() -> None:
    parser = argparse.ArgumentParser(description="The page at /ops with many orders.")
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("page", stage.settings())
        for size in ((FEW_ORDERS, FEW_LETTERS), (options.waiting, options.letters)):
            order_id = fill(stage, *size)
            column = "ms with {:,} orders and {:,} dead letters".format(*size)
            with page(stage) as browser:
                for _ in range(options.repetitions):
                    time.sleep(APART_SECONDS)
                    for name, ms in visit(browser, order_id):
                        report.add(name, **{column: ms})
        report.save()


def fill(stage: Scene, waiting: int, letters: int) -> str:
    """Have so many unpaid orders with their checks, and so many dead letters; return the id of an order."""
    [order_id, *_] = stage.load(FEW_ORDERS)
    stage.add_waiting(waiting)
    bury(stage, stage.client(), letters)
    stage.queue().schedule_many((str(uuid7()), FAR_AWAY_MS, b"") for _ in range(waiting))
    return order_id


@contextmanager
def page(stage: Scene) -> Iterator[httpx.Client]:
    """A browser that is logged in."""
    key = create_key(stage.env, "operator", "ops")
    with stage.api() as (port, _):
        origin = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=origin, headers={"Origin": origin}, timeout=60) as browser:
            browser.post("/ops/session", json={"key": key}).raise_for_status()
            yield browser


def visit(browser: httpx.Client, order_id: str) -> Iterator[tuple[str, float]]:
    """Each request with how long it took, in ms."""

    def get(path: str, **parameters: Any) -> float:
        began = time.perf_counter()
        browser.get(f"/ops/{path}", params=parameters).raise_for_status()
        return (time.perf_counter() - began) * 1000

    yield "what it polls", get("state")
    yield "search by id", get("search", text=order_id)
    yield "search by reference", get("search", text="no-such-reference")
    yield "an order and its time line", get(f"orders/{order_id}")
    yield "newest dead letters", get("letters", queue=QUEUE)
    yield "search in dead letters", get("letters", queue=QUEUE, text="no such error")
    yield "refunds due", get("refunds")
    yield "examination by the doctor", get("doctor")


if __name__ == "__main__":
    main()
