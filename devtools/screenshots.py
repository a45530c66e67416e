# <ops/>
"""Takes screenshots of the operators' page, for docs/, on a service filled with data."""

import argparse
import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from devtools import accounts
from devtools.chromium import Browser, Page, chromium
from devtools.processes import ROOT, free_port
from devtools.service import Service
from orders.config import Settings
from orders.db.tables import order_events, order_items, orders
from orders.order.domain import NewOrder
from orders.queues import QUEUE
from orders.wiring import Services, bootstrap
from worker import DelayQueue

CLIENTS = ("mugs-and-more", "teahouse", "nordlicht")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.screenshots", description=__doc__)
    text = "takes all sections, at more widths; without it, writes light.png and dark.png of orders/features/ops"
    parser.add_argument("folder", nargs="?", type=Path, help=text)
    folder: Path | None = parser.parse_args().folder
    program = chromium()
    if program is None:
        print("There is no Chromium on PATH; set CHROMIUM to its path.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as data, Service(Path(data), free_port()) as service:
        key = accounts.create_key(service.env, "anna", "ops")
        fill(service)
        with Browser(program) as browser:
            url = f"{service.base_url}/ops"
            if folder is None:
                for scheme in ("light", "dark"):
                    page = opened(browser, url, key, 1280, dark=scheme == "dark")
                    page.screenshot(
                        ROOT / "orders" / "features" / "ops" / f"{scheme}.png", height=900
                    )
            else:
                folder.mkdir(parents=True, exist_ok=True)
                for name, width, dark in (
                    ("light", 1280, False),
                    ("dark", 1280, True),
                    ("phone", 360, False),
                ):
                    take_all(opened(browser, url, key, width, dark=dark), folder, name)
    return 0


def opened(browser: Browser, url: str, key: str, width: int, *, dark: bool) -> Page:
    """Log in, and wait until the page shows everything."""
    page = browser.page(width=width, height=800, dark=dark)
    page.go(url)
    page.until("document.querySelector('#key').checkVisibility()", "the login")
    page.type("#key", key)
    page.click("#login button")
    page.until("document.querySelector('#latest tr')", "orders")
    return page


def take_all(page: Page, folder: Path, name: str) -> None:
    first = page.run("document.querySelector('#next a').hash")
    expired = page.run("document.querySelector('#latest a').hash")
    views = {"overview": "#overview", "dead": "#dead", "refunds": "#refunds"}
    for view, address in (views | {"order": first, "expired": expired}).items():
        page.run(f"location.hash = {address!r}")
        page.run("new Promise((done) => setTimeout(done, 900))")
        height = page.run("document.documentElement.scrollHeight")
        page.screenshot(folder / f"{name}-{view}.png", height=max(800, height))


# -- data to show --------------------------------------------------------------------------


def fill(service: Service) -> None:
    """Orders that keep expiring, a history of expired ones, dead letters, and refunds due."""
    env = service.env
    services = bootstrap(Settings.from_env(env))
    dice = random.Random(4711)  # noqa: S311
    for sku, price in (("mug", 1250), ("tea", 690), ("lamp", 8900), ("chair", 14_900)):
        services.stock.set(sku, on_hand=100_000, price_minor=price, currency="EUR")
    for name in CLIENTS:
        services.clients.create_key(name, ["orders"])
    ids = {name: services.clients.id_of(name) for name in CLIENTS}
    number = iter(range(10_400, 99_999))
    for _ in range(420):
        place(services, ids, dice, f"A-{next(number)}", dice.triangular(20, 1800, 700))
    for seconds in (7, 16, 24, 31, 45, 52, 58, 70):
        place(services, ids, dice, f"A-{next(number)}", seconds)
    pay_late(services, ids, dice)
    make_history(services, dice)
    bury(services)
    services.close()


def place(
    services: Services, ids: dict[str, str], dice: random.Random, name: str, seconds: float
) -> str:
    new = NewOrder(
        client_id=ids[dice.choice(CLIENTS)],
        key=uuid4().hex,
        fingerprint=uuid4().hex,
        quantities={dice.choice(["mug", "tea", "lamp", "chair"]): dice.randint(1, 4)},
        timeout_seconds=seconds,
        client_reference=name if dice.random() < 0.8 else None,
    )
    return services.orders.place(new).order.id


def pay_late(services: Services, ids: dict[str, str], dice: random.Random) -> None:
    """Payments that must be refunded."""
    for n in range(4):
        order_id = place(services, dict.fromkeys(CLIENTS, ids["teahouse"]), dice, f"B-{n}", 900)
        order = services.orders.order(None, order_id)
        if n:
            services.orders.cancel(ids["teahouse"], order_id)
        services.orders.pay(
            ids["teahouse"],
            order_id,
            provider="bank",
            reference=f"tx-{7300 + n}",
            amount_minor=order.total_minor - (0 if n else 100),
            currency="EUR",
        )


def make_history(services: Services, dice: random.Random) -> None:
    """Orders that expired within the last half hour, a few of them late."""
    now = datetime.now(UTC)
    with services.engine.begin() as connection:
        [some, *_] = connection.execute(sa.select(orders).limit(1)).all()
        customers = [*connection.execute(sa.select(orders.c.client_id).distinct()).scalars()]
        for n in range(600):
            ended = now - timedelta(seconds=dice.uniform(3, 1795))
            slow = timedelta(minutes=11) < now - ended < timedelta(minutes=13)
            late_ms = dice.uniform(200, 2600) if slow else dice.lognormvariate(1.6, 0.6)
            row = dict(some._mapping) | {  # noqa: SLF001
                "id": str(uuid4()),
                "client_id": dice.choice(customers),
                "created_at": ended - timedelta(minutes=30),
                "idempotency_key": uuid4().hex,
                "client_reference": f"A-{9800 + n}",
            }
            connection.execute(sa.insert(orders).values(row))
            item = {"order_id": row["id"], "sku": "tea", "quantity": 1, "unit_price_minor": 690}
            connection.execute(sa.insert(order_items).values(item))
            of_order = {"order_id": row["id"], "client_id": row["client_id"]}
            ending = {
                "expires_at": ended - timedelta(milliseconds=late_ms),
                "version": 2,
                "client_reference": row["client_reference"],
            }
            for kind, at, data, end in (
                ("order.created", row["created_at"], {}, {}),
                ("order.cancelled", ended, {"reason": "expired"}, ending),
            ):
                event = {**of_order, "type": kind, "at": at, "data": data, **end}
                connection.execute(sa.insert(order_events).values(event))


def bury(services: Services) -> None:
    """Dead letters: tasks that the flow refuses."""
    queue = DelayQueue(services.redis, QUEUE)
    queue.schedule_many([(task_id, 1, b"") for task_id in ("cart-0815", "refund-4711")])
    queue.schedule(str(uuid4()), delay_ms=0, payload=b"urgent")


if __name__ == "__main__":
    sys.exit(main())
