"""What `doctor` says of the order service's database, each with the fault made real."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from devtools.processes import ROOT
from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.database import create_engine, writing
from orders.db.files import Statement
from orders.db.schema import SQL, check_ready, schema_version
from orders.db.tables import order_events, payments, stock_items, unpaid_orders
from orders.errors import StorageUnavailable
from orders.features.doctor.doctor import MEND_STOCK, Doctor
from orders.features.freezes.service import Freezes  # <freezes/>
from orders.features.freezes.signs import CLOCK  # <freezes/>
from orders.features.providers.domain import Sender  # <providers/>
from orders.features.providers.service import Providers  # <providers/>
from orders.queues import queue_names
from tests.kit.expiring import expire_now
from tests.kit.races import together, waiting
from tests.kit.shop import Shop, opened
from tests.providers.provider import fill_inbox, report  # <providers/>
from worker import DelayQueue, Finding

IS_EXPIRED = sa.text("type = 'order.cancelled' AND data ->> 'reason' = 'expired'")

NOWHERE = "postgresql+psycopg://shop:s3cret@127.0.0.1:1/shop"


def found(engine: sa.Engine, **settings: Any) -> dict[str, Finding]:
    """What is not well, by its check."""
    findings = Doctor(engine, **settings).examine()
    return {finding.check: finding for finding in findings if finding.level != "ok"}


def execute(engine: sa.Engine, *statements: str) -> None:
    with writing(engine) as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """Orders of each kind, a refund due, one sent and one that failed, in an analysed database."""
    shop.stock("cup", 10)
    shop.place(tea=3, cup=1)
    paid, cancelled, expired = shop.place(tea=2), shop.place(cup=1), shop.place(tea=1)
    applied = shop.pay(paid).payment
    shop.service.refund(shop.client, applied.id, "re-0", 1)
    shop.service.refund(shop.client, applied.id, "re-2", 1)
    report(shop, applied, "failed", "re-2")  # <providers/>
    shop.pay(paid)
    shop.service.cancel(shop.client, cancelled.id)
    late = shop.pay(cancelled).payment
    shop.service.refund(shop.client, late.id, "re-1")
    shop.expire_in(-1, expired)
    expire_now(shop.service, [expired.id])
    execute(shop.engine, "ANALYZE")
    return shop


@contextmanager
def other_session(shop: Shop) -> Iterator[sa.Connection]:
    """A transaction of somebody else's."""
    args = {"application_name": "report"}
    engine = sa.create_engine(shop.engine.url, poolclass=sa.NullPool, connect_args=args)
    with engine.begin() as connection:
        yield connection


def test_all_is_well(busy: Shop) -> None:
    findings = [*Doctor(busy.engine).examine()]
    assert [finding for finding in findings if finding.level != "ok" or finding.advice] == []
    assert [finding.check for finding in findings] == [
        "sql.version",
        "sql.settings",
        "sql.writes",
        "sql.clock",
        "sql.schema",
        "sql.fit",
        "sql.indexes",
        "orders.stock",
        "orders.history",
        "orders.webhooks",  # <webhooks/>
        "orders.inbox",  # <providers/>
        "orders.freezes",  # <freezes/>
        "orders.locked",  # <why/>
    ]


def test_an_examination_changes_nothing(busy: Shop) -> None:
    before = busy.tables()
    found(busy.engine)
    assert busy.tables() == before


def test_a_database_that_is_read_only(migrated_url: str) -> None:
    with_option = f"{migrated_url}?options=-cdefault_transaction_read_only%3Don"
    engine = create_engine(Settings.of(database_url=with_option, redis_url="redis://nowhere"))
    finding = found(engine)["sql.writes"]
    engine.dispose()
    assert (finding.level, "target_session_attrs" in finding.advice) == ("failure", True)


def test_a_server_whose_disk_is_full(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it answers then; a real disk is filled up in tests/faults."""
    full = Statement("DO $$ BEGIN RAISE SQLSTATE '53100' USING MESSAGE = 'no space left'; END $$")
    monkeypatch.setitem(SQL.statements, "spill", full)
    finding = found(shop.engine)["sql.writes"]
    assert (finding.level, "no space left" in finding.summary) == ("failure", True)
    with pytest.raises(StorageUnavailable):
        check_ready(shop.engine)


def test_a_schema_that_is_older_or_missing(busy: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        for module in ("db.schema", "features.doctor.doctor"):
            later.setattr(f"orders.{module}.schema_version", lambda: "of tomorrow")
        finding = found(busy.engine)["sql.schema"]
    assert finding.level == "failure"
    assert finding.summary == f"revision {schema_version()}, not of tomorrow: nothing is served"
    assert "python -m orders migrate" in finding.advice
    execute(busy.engine, "DROP TABLE alembic_version")
    assert "revision none" in found(busy.engine)["sql.schema"].summary


@pytest.mark.parametrize(("offset", "text"), [(60, "s behind"), (-60, "s ahead of")])
def test_a_clock_that_is_off_by_a_minute(shop: Shop, offset: int, text: str) -> None:
    finding = found(shop.engine, clock=lambda: time.time() + offset)["sql.clock"]
    assert finding.level == "warning"
    assert text in finding.summary


# <freezes>
def test_nothing_is_called_on_time_while_a_clock_has_frozen_everything(shop: Shop) -> None:
    reason = "The database's clock jumped 60.0 s ahead."
    Freezes(shop.engine).open(reason=reason, by=CLOCK, seconds=60)
    findings = found(shop.engine, clock=lambda: time.time() - 60)
    assert [*findings] == ["sql.clock", "orders.freezes"]
    assert reason.rstrip(".") in findings["orders.freezes"].summary
    assert "on time" not in findings["sql.clock"].advice


# </freezes>


@pytest.mark.parametrize(
    "breaks",
    [
        "DROP INDEX ix_unpaid_orders_expires",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_unpaid_orders_expires'::regclass",
    ],
)
def test_an_index_that_is_missing_or_invalid(busy: Shop, breaks: str) -> None:
    execute(busy.engine, breaks)
    finding = found(busy.engine)["sql.indexes"]
    assert finding.level == "failure"
    assert finding.summary == "missing or invalid: ix_unpaid_orders_expires"


@pytest.mark.parametrize("change", [1, -1])
def test_stock_that_does_not_add_up(busy: Shop, change: int) -> None:
    moved = sa.update(stock_items).where(stock_items.c.sku == "tea")
    with writing(busy.engine) as connection:
        connection.execute(moved.values(reserved=stock_items.c.reserved + change))
    finding = found(busy.engine)["orders.stock"]
    assert finding.level == "failure"
    assert f"tea: 98 on hand, {3 + change} reserved, unpaid orders reserve 3" in finding.summary
    assert "cup" not in finding.summary
    # What it says to run mends it, and changes nothing the second time.
    mend = finding.advice[finding.advice.index("UPDATE") :]
    for _ in range(2):
        execute(busy.engine, mend)
        busy.check(tea=100, cup=10)
        assert "orders.stock" not in found(busy.engine)


def test_stock_that_is_less_than_orders_hold(busy: Shop) -> None:
    """First an adjustment says how much there is, then it adds up again."""
    execute(busy.engine, "UPDATE stock_items SET on_hand = 2, reserved = 2 WHERE sku = 'tea'")
    mend = MEND_STOCK.format(sku="tea")
    with pytest.raises(sa.exc.IntegrityError, match="reserved_on_hand"):
        execute(busy.engine, mend)
    busy.stock_service.adjust("tea", client_id=busy.client, key="k", delta=2, reason="counted")
    execute(busy.engine, mend)
    assert busy.shelf() == (4, 3)


def test_stock_is_mended_as_it_is_once_it_is_locked(shop: Shop) -> None:
    """Orders of that moment are neither in what it saw reserved nor in what it saw held."""
    shop.place(tea=3)
    execute(shop.engine, "UPDATE stock_items SET reserved = 13")
    with waiting(shop, lambda: execute(shop.engine, MEND_STOCK.format(sku="tea"))) as (other, _):
        other.execute(sa.update(stock_items).values(reserved=stock_items.c.reserved + 2))
    assert shop.shelf() == (100, 5)


def test_stock_is_mended_while_orders_come_and_go(shop: Shop) -> None:
    shop.stock("tea", 50)
    execute(shop.engine, "UPDATE stock_items SET reserved = 7")

    def sell(quantity: int) -> None:
        for _ in range(40):
            shop.service.cancel(shop.client, shop.place(tea=quantity).id)

    def mend() -> None:
        for _ in range(20):
            execute(shop.engine, MEND_STOCK.format(sku="tea"))

    together(lambda: sell(1), lambda: sell(2), mend)
    shop.check(tea=50)


def test_beyond_what_is_read_only_too_little_reserved_is_told(
    busy: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.features.doctor.doctor.MOST_UNPAID", 2)
    busy.place(tea=5)
    busy.place(tea=5)
    assert "orders.stock" not in found(busy.engine)
    with writing(busy.engine) as connection:
        connection.execute(sa.update(stock_items).values(reserved=0))
    assert "unpaid orders reserve" in found(busy.engine)["orders.stock"].summary


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            sa.delete(order_events).where(IS_EXPIRED),
            "its events, payments and row in unpaid_orders differ",
        ),
        (
            sa.insert(unpaid_orders).from_select(
                ["order_id", "client_id", "expires_at", "pieces"],
                sa.select(
                    order_events.c.order_id,
                    order_events.c.client_id,
                    order_events.c.expires_at,
                    sa.literal(1),
                ).where(IS_EXPIRED),
            ),
            "its events, payments and row in unpaid_orders differ",
        ),
        (
            sa.update(order_events).where(IS_EXPIRED).values(type="order.paid"),
            "its events, payments and row in unpaid_orders differ",
        ),
        (
            sa.update(payments)
            .where(payments.c.status == "applied")
            .values(status="refund_due", reason="already_paid"),
            "its events, payments and row in unpaid_orders differ, its refunds and events differ",
        ),
        (
            sa.update(order_events).where(IS_EXPIRED).values(
                at=order_events.c.expires_at, expires_at=order_events.c.at
            ),
            "it was cancelled before its deadline",
        ),
        (sa.text("DELETE FROM order_events WHERE type = 'payment.refunded'"), "its refunds"),
        (sa.text("DELETE FROM order_events WHERE type = 'order.refunded'"), "its refunds"),
        (sa.text("UPDATE payments SET refunded_minor = 3 WHERE status = 'applied'"), "its refunds"),
        # <providers>
        (
            sa.text("DELETE FROM order_events WHERE type = 'payment.refund_failed'"),
            "its refunds",
        ),
        # </providers>
    ],
    ids=[
        *("no ending", "a row and an ending", "another ending", "a payment", "early", "a refund", "a part", "a sum"),
        "a failure",  # <providers/>
    ],
)  # fmt: skip
def test_an_order_that_contradicts_itself(busy: Shop, wrong: Any, text: str) -> None:
    with writing(busy.engine) as connection:
        connection.execute(wrong)
    finding = found(busy.engine)["orders.history"]
    assert finding.level == "failure"
    assert text in finding.summary


# <providers>
def test_messages_of_providers_that_wait(busy: Shop) -> None:
    providers = Providers(busy.engine)
    endpoint, _ = providers.add("customer", "bank")
    sender = Sender(endpoint.id, busy.client, "bank")
    providers.keep(sender, "m-1", b"{}", "applied")
    assert found(busy.engine) == {}
    providers.keep(sender, "m-2", b"{", "The body is not JSON.", waits=True)
    finding = found(busy.engine)["orders.inbox"]
    assert finding.level == "warning"
    assert finding.summary.startswith("1 of providers' messages wait, since 2")
    assert "of customer: The body is not JSON." in finding.summary
    fill_inbox(busy.engine, endpoint.id)
    finding = found(busy.engine)["orders.inbox"]
    assert finding.level == "failure"
    assert finding.summary.startswith("10,000 or more of providers' messages wait")


# </providers>


def test_a_statement_that_takes_too_long(busy: Shop) -> None:
    impatient = {"statement_timeout_seconds": 60, "lock_timeout_seconds": 0.2}
    url = busy.engine.url.render_as_string(hide_password=False)
    with opened(url, **impatient) as shop, other_session(shop) as connection:
        connection.execute(sa.text("LOCK TABLE stock_items"))
        findings = found(shop.engine)
    assert findings["orders.stock"].level == "warning"
    assert "not known" in findings["orders.stock"].summary
    assert "orders.history" not in findings, "the rest is examined all the same"


# -- the command ---------------------------------------------------------------------------


class Command:
    """Runs it on the orders' flow, beside a worker that lives."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self.env = {"DATABASE_URL": database_url, "REDIS_URL": redis_url}

    def __call__(self, **env: str) -> dict[str, dict[str, str]]:
        done = subprocess.run(
            [sys.executable, "-m", "worker", "doctor", "orders.timeouts:flows", "--json"],
            cwd=ROOT,
            env={**os.environ, **self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        found = {row["check"]: row for row in map(json.loads, done.stdout.splitlines())}
        levels = {row["level"] for row in found.values()}
        assert done.returncode == (2 if "failure" in levels else int("warning" in levels))
        return {check: row for check, row in found.items() if row["level"] != "ok"}


@pytest.fixture
def doctor(migrated_url: str, valkey: Valkey, redis_client: redis.Redis) -> Command:
    live = {"up": True, "holds": 0, "held": [], "oldest_seconds": 0.0}
    for queue in queue_names():
        DelayQueue(redis_client, queue).beat("host:1:abcdef", live)
    return Command(migrated_url, valkey.url)


@pytest.mark.slow
def test_the_command_says_what_the_service_finds(doctor: Command, busy: Shop) -> None:
    assert doctor() == {}
    with writing(busy.engine) as connection:
        connection.execute(sa.update(stock_items).values(reserved=0))
    assert doctor()["orders.stock"]["level"] == "failure"


def test_settings_that_contradict_each_other(doctor: Command) -> None:
    finding = doctor(STATEMENT_TIMEOUT_SECONDS="60")["flows"]
    assert finding["level"] == "failure"
    assert "STATEMENT_TIMEOUT_SECONDS < LEASE_SECONDS" in finding["summary"]


def test_what_is_wrong_with_sql_is_all_that_is_told(doctor: Command, database_url: str) -> None:
    findings = doctor(DATABASE_URL=NOWHERE)
    assert [*findings] == ["sql.answers"]
    assert "s3cret" not in str(findings)
    assert [*doctor(DATABASE_URL=database_url)] == ["sql.schema"]
