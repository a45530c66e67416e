"""How long anybody waits for a migration that adds a column and an index to a million orders.

    python -m benchmarks.migrating [--orders 1000000] [--seconds 10]

Threads place and pay orders before, during and after it; each operation is one statement, and the longest is
what a customer waits at most. The migration is the one of docs/upgrading.md, run as any other is.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from benchmarks.report import Report
from benchmarks.scene import WAITING, Scene, scene
from devtools.processes import ROOT
from orders.bootstrap import Services, bootstrap
from orders.config import Settings
from orders.order.domain import NewOrder
from orders.sql.tables import SCHEMA_VERSION

CUSTOMERS = 4
HEADER = """import sqlalchemy as sa
from alembic import op
revision, down_revision = "0999_more", "{below}"
branch_labels = depends_on = None

"""


def main() -> None:
    parser = argparse.ArgumentParser(description="How long a migration holds anybody up.")
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("migrating", stage.settings())
        stage.load(0)
        with psycopg.connect(stage.dsn) as connection:
            for statement in WAITING[1:3]:  # without items, which the migration does not touch
                connection.execute(statement, {"count": options.orders})
        services = bootstrap(replace(Settings.from_env(stage.env), database_pool_size=CUSTOMERS))
        key = services.clients.create_key("shopper", ["orders"])  # with no orders to count
        customer = services.clients.authenticate(key)
        assert customer is not None
        with shopping(services, customer.id) as took:
            for row in ("before", "during", "after"):
                began, seen = time.perf_counter(), len(took)
                if row == "during":
                    migrate(stage)
                else:
                    time.sleep(options.seconds)
                found, seconds = sorted(took[seen:]), time.perf_counter() - began
                report.add(
                    row,
                    seconds=seconds,
                    statements_per_s=len(found) / seconds,
                    p99_ms=found[len(found) * 99 // 100] * 1000,
                    longest_ms=found[-1] * 1000,
                )
        services.close()
        report.save()


@contextmanager
def shopping(services: Services, customer: str) -> Iterator[list[float]]:
    """Yields how long each operation took, s; the list grows."""
    took: list[float] = []
    ending = threading.Event()

    def shop(name: int) -> None:
        number = 0
        while not ending.is_set():
            number += 1
            key = f"{name}-{number}"
            new = NewOrder(
                client_id=customer, key=key, fingerprint="f", quantities={f"sku-{name}": 1}
            )
            began = time.perf_counter()
            order = services.orders.place(new).order
            placed = time.perf_counter()
            services.orders.pay(
                customer,
                order.id,
                provider="bank",
                reference=key,
                amount_minor=order.total_minor,
                currency=order.currency,
            )
            took.extend((placed - began, time.perf_counter() - placed))

    threads = [threading.Thread(target=shop, args=(n,)) for n in range(CUSTOMERS)]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def migrate(stage: Scene) -> None:
    """Run the page's migration."""
    page = (ROOT / "docs" / "upgrading.md").read_text()
    block = page.partition("```python\n")[2].partition("```\n")[0]
    folder = stage.folder / "later"
    folder.mkdir()
    text = HEADER.format(below=SCHEMA_VERSION) + block
    Path(folder / "0999_more.py").write_text(text)
    config = Config(ROOT / "alembic.ini")
    config.attributes["engine"] = sa.create_engine(stage.database_url, poolclass=sa.NullPool)
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", f"{ROOT}/migrations/versions:{folder}")
    command.upgrade(config, "head")


if __name__ == "__main__":
    main()
