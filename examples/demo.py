"""The whole story over HTTP, on a timeline, with every outcome checked.

    python -m examples.demo                                       everything, on its own servers
    python -m examples.demo --base-url URL --api-key KEY          against a running service

Against a running service, the acts that kill Redis and the worker are left out. Exits with 1 if an outcome is wrong.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import psycopg
import redis

from devtools import accounts, processes
from devtools.processes import wait_until
from devtools.service import Service
from examples.provider import PaymentProvider  # <providers/>

TIMEOUT_SECONDS = 2
LEASE_SECONDS = 3
SETTINGS = {
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "STATEMENT_TIMEOUT_SECONDS": "2.5",
    "LOCK_TIMEOUT_SECONDS": "2.5",
}


class Reply(NamedTuple):
    """A response."""

    status: int
    body: dict[str, Any]
    replayed: bool


class Shop:
    """A client of the API, which also fills the shelf."""

    def __init__(self, base_url: str, api_key: str, patience: float) -> None:
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._patience = patience
        self._sku = f"mug-{uuid4().hex[:8]}"

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Send one request."""
        request = Request(  # noqa: S310  whoever runs the demo names the URL
            f"{self._base_url}/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._api_key}",
                "Content-Type": "application/json",
                **headers,
            },
        )
        try:
            with urlopen(request, timeout=10) as response:  # noqa: S310
                replayed = response.headers.get("Idempotent-Replayed") == "true"
                return Reply(response.status, json.load(response), replayed)
        except HTTPError as error:
            return Reply(error.code, json.load(error), replayed=False)

    def fill(self, on_hand: int) -> None:
        body = {"on_hand": on_hand, "price_minor": 1250, "currency": "EUR"}
        self.call("PUT", f"/stock/{self._sku}", body)

    def shelf(self) -> tuple[int, int]:
        """How many mugs there are, and how many of those are reserved."""
        stock = self.call("GET", f"/stock/{self._sku}").body
        return stock["on_hand"], stock["reserved"]

    def order(self, key: str | None = None, quantity: int = 1) -> Reply:
        body = {
            "items": [{"sku": self._sku, "quantity": quantity}],
            "timeout_seconds": TIMEOUT_SECONDS,
        }
        return self.call("POST", "/orders", body, **{"Idempotency-Key": key or uuid4().hex})

    def pay(self, order: dict[str, Any]) -> Reply:
        body = {
            "provider": "demo",
            "reference": uuid4().hex,
            "amount_minor": order["total_minor"],
            "currency": order["currency"],
        }
        return self.call("POST", f"/orders/{order['id']}/payments", body)

    def look(self, order: dict[str, Any]) -> dict[str, Any]:
        return self.call("GET", f"/orders/{order['id']}").body

    def cancellations(self, order: dict[str, Any]) -> int:
        events = self.call("GET", f"/orders/{order['id']}/events").body["data"]
        return sum(event["type"] == "order.cancelled" for event in events)

    def wait_for_cancellation(self, orders: Sequence[dict[str, Any]]) -> list[float]:
        """Wait until all are cancelled; return how late each was, in ms."""
        late = []
        for order in orders:
            seen = order

            def cancelled() -> bool:
                nonlocal seen
                seen = self.look(order)  # noqa: B023  called before the next order
                return bool(seen["status"] == "cancelled")

            seconds = self._patience * (TIMEOUT_SECONDS + LEASE_SECONDS + 5)
            wait_until(cancelled, "a cancellation", seconds=seconds)
            late.append(_ms_between(seen["expires_at"], seen["cancelled_at"]))
        return late


class Story:
    """Prints what happens and when, and whether it is right."""

    def __init__(self, patience: float) -> None:
        self.wrong = 0
        self._patience = patience
        self._start = time.monotonic()
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._good, self._bad, self._bold, self._plain = (
            ("\033[32m", "\033[31m", "\033[1m", "\033[0m") if colours else ("", "", "", "")
        )

    def act(self, title: str) -> None:
        print(f"\n{self._bold}{title}{self._plain}")

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:7.2f} s    {text}", flush=True)

    def check(self, holds: bool, text: str) -> None:  # noqa: FBT001  it is what is checked
        mark = f"{self._good}ok{self._plain}   " if holds else f"{self._bad}WRONG{self._plain}"
        print(f"{time.monotonic() - self._start:7.2f} s {mark} {text}", flush=True)
        self.wrong += not holds

    def check_late(self, late_ms: Sequence[float], seconds: float, text: str) -> None:
        """Check that none was early, and none later than allowed."""
        latest_ms = 1000 * seconds * self._patience
        self.check(min(late_ms) >= 0 and max(late_ms) < latest_ms, text)


def play(shop: Shop, story: Story) -> None:
    """The acts that need only HTTP."""
    shop.fill(100)

    story.act("Paid in time")
    paid = shop.order(quantity=2).body
    story.tell(f"order {paid['id']} reserves 2 of 100 mugs")
    story.check(shop.pay(paid).body["status"] == "applied", "the payment is applied")
    story.check(shop.shelf() == (98, 0), "2 mugs are sold")

    story.act("The same create, sent twice")
    key = uuid4().hex
    first, second = shop.order(key), shop.order(key)
    story.check(first.body == second.body, f"both responses are order {first.body['id']}")
    story.check(second.replayed, "the second one says that it is a replay")
    story.check(shop.shelf() == (98, 1), "1 mug is reserved, not 2")

    story.act("Never paid")
    late = shop.wait_for_cancellation([first.body])
    story.check_late(late, 1, f"cancelled {late[0]:.0f} ms after its deadline")
    story.check(shop.shelf() == (98, 0), "its mug is back on the shelf")
    story.check(shop.look(paid)["status"] == "paid", "the paid order is still paid")

    story.act("Paid too late")
    reply = shop.pay(first.body)
    story.check(
        (reply.status, reply.body["status"]) == (202, "refund_due"),
        "the money is kept and marked for refund: 202, refund_due",
    )
    story.check(shop.look(first.body)["status"] == "cancelled", "the order stays cancelled")


# <providers>
def play_provider(shop: Shop, story: Story, provider: PaymentProvider) -> None:
    story.act("Paid at a provider")
    order = shop.order().body
    report = provider.charge(order)
    story.tell("the payment provider takes the money, and says so in a signed webhook")
    story.check(provider.deliver(report) == "applied", "the payment is applied")
    story.check(provider.deliver(report) == "replayed", "the webhook comes twice: no change")


# </providers>
def play_faults(shop: Shop, story: Story, service: Service) -> None:
    """The acts in which something is killed."""
    story.act("Redis dies while 20 orders wait")
    orders = [shop.order().body for _ in range(20)]
    service.valkey.kill()
    story.tell("Redis is killed with kill -9")
    reply = shop.order()
    story.check(reply.status == 201, "a new order is still accepted")
    late = shop.wait_for_cancellation([*orders, reply.body])
    story.check_late(
        late,
        3,
        f"all 21 cancelled without Redis, {min(late):.0f} to {max(late):.0f} ms late",
    )

    story.act("Redis comes back, and forgets everything")
    service.valkey.start()
    story.tell("Redis is started again")
    orders = [shop.order().body for _ in range(20)]
    with closing(redis.Redis.from_url(service.valkey.url)) as client:
        client.flushall()
    story.tell("FLUSHALL, while 20 orders wait")
    late = shop.wait_for_cancellation(orders)
    story.check_late(late, 3, f"all 20 cancelled, {min(late):.0f} to {max(late):.0f} ms late")
    story.check(
        all(shop.cancellations(order) == 1 for order in orders), "each of them exactly once"
    )

    story.act("The worker dies while it cancels an order")
    order = shop.order().body
    _kill_in_mid_cancel(service, story)
    service.worker = service.start_worker()
    late = shop.wait_for_cancellation([order])
    story.check_late(
        late,
        LEASE_SECONDS + 3,
        f"another worker cancelled it when the lease of {LEASE_SECONDS} s ended, "
        f"{late[0]:.0f} ms late",
    )
    story.check(shop.cancellations(order) == 1, "cancelled once")
    story.check(shop.shelf() == (98, 0), "every mug that was not sold is back on the shelf")


def _kill_in_mid_cancel(service: Service, story: Story) -> None:
    """Kill the worker between claim and commit: it waits there while we hold the stock's locks."""
    url = service.postgres.url().replace("+psycopg", "")
    with (
        closing(redis.Redis.from_url(service.valkey.url)) as client,
        closing(psycopg.connect(url)) as holder,
        closing(psycopg.connect(url, autocommit=True)) as watcher,
    ):
        wait_until(lambda: _seconds_to_next(client) < 1, "the deadline to come near", seconds=10)
        holder.execute("SELECT FROM stock_items FOR UPDATE")
        waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: watcher.execute(f"SELECT {waiting}").rowcount, "the worker's statement")
        service.worker.kill()
        # A server that waits for a lock does not see that its client is gone.
        watcher.execute(f"SELECT pg_terminate_backend(pid) {waiting}")
        holder.rollback()
    story.tell("the worker has claimed it and begun: kill -9")


def _seconds_to_next(client: redis.Redis) -> float:
    head: Any = client.zrange("{order-timeout}:scheduled", 0, 0, withscores=True)
    return head[0][1] / 1000 - time.time() if head else float("inf")


def _ms_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds() * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", help="a running service, as http://127.0.0.1:8000")
    parser.add_argument(
        "--api-key", default=os.environ.get("KEY"), type=_without_spaces, help="default: KEY"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=1,
        metavar="TIMES",
        help="allow TIMES the usual lateness, for a busy machine",
    )
    options = parser.parse_args()
    story = Story(options.patience)
    if options.base_url and not options.api_key:
        parser.error("--base-url needs --api-key, one with the scopes orders, payments and ops")
    try:
        if options.base_url:
            shop = Shop(options.base_url, options.api_key, options.patience)
            play(shop, story)
        else:
            _play_with_a_service(story, options.patience)
    except (OSError, RuntimeError) as error:  # TimeoutError and URLError are OSErrors
        story.check(False, str(error))
    print(f"\n{story.wrong} outcomes are wrong." if story.wrong else "\nAll as it should be.")
    return 1 if story.wrong else 0


def _without_spaces(key: str) -> str:
    """A key without the line breaks of a careless paste, which a header must not contain."""
    return "".join(key.split())


def _play_with_a_service(story: Story, patience: float) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(Path(folder), processes.free_port(), SETTINGS) as service,
    ):
        key = accounts.create_key(service.env, "demo", "orders", "payments", "ops")
        shop = Shop(service.base_url, key, patience)
        story.tell("API, worker and Valkey run as separate processes; orders are in PostgreSQL")
        play(shop, story)
        play_faults(shop, story, service)
        # <providers>
        path, secret = accounts.add_provider(service.env, "demo", "bank")
        play_provider(shop, story, PaymentProvider(f"{service.base_url}{path}", secret))
        # </providers>


if __name__ == "__main__":
    sys.exit(main())
