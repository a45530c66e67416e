"""Migrations make exactly the tables of the models, and can be taken back."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from devtools.processes import ROOT, run, wait_until
from orders.clients.service import Clients
from orders.config import Settings
from orders.errors import EndpointNotFound, KeyReused
from orders.order.service import OrderService, Placed, Timeouts
from orders.providers.service import Providers
from orders.sql.database import create_engine
from orders.sql.errors import LOCK_NOT_AVAILABLE, sqlstate
from orders.sql.ids import new_id
from orders.sql.tables import SCHEMA_VERSION, metadata
from orders.stock.service import StockService
from tests.conftest import RecordingScheduler


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(database_url, poolclass=sa.NullPool)
    yield made
    made.dispose()


@pytest.fixture
def config(engine: sa.Engine) -> Config:
    made = Config(ROOT / "alembic.ini")
    made.attributes["engine"] = engine
    return made


def schema(engine: sa.Engine) -> dict[str, Any]:
    """Everything that a database says about its tables."""
    look = sa.inspect(engine)
    found = {}
    for table in sorted({*look.get_table_names()} - {"alembic_version"}):
        found[table] = {
            "columns": [
                (c["name"], repr(c["type"]), c["nullable"], c["default"], c.get("identity"))
                for c in look.get_columns(table)
            ],
            "key": look.get_pk_constraint(table),
            "foreign": sorted(map(repr, look.get_foreign_keys(table))),
            "unique": sorted(map(repr, look.get_unique_constraints(table))),
            "checks": sorted(map(repr, look.get_check_constraints(table))),
            "indexes": sorted(
                (str(i["name"]), repr(i["column_names"]), bool(i["unique"]), condition(i))
                for i in look.get_indexes(table)
            ),
        }
    return found


def condition(index: Any) -> str:
    options = index.get("dialect_options", {})
    return str(options.get("sqlite_where", options.get("postgresql_where", "")))


def test_upgrading_and_downgrading_leave_no_trace(engine: sa.Engine, config: Config) -> None:
    command.upgrade(config, "head")
    command.check(config)
    first = schema(engine)
    assert first.keys() == metadata.tables.keys()
    command.downgrade(config, "base")
    assert schema(engine) == {}
    command.upgrade(config, "head")
    command.check(config)
    assert schema(engine) == first


def test_upgrading_again_changes_nothing(engine: sa.Engine, config: Config) -> None:
    command.upgrade(config, "head")
    first = schema(engine)
    command.upgrade(config, "head")
    assert schema(engine) == first


def test_migrations_make_what_the_models_say(engine: sa.Engine, config: Config) -> None:
    """Checks and conditions of indexes as well, which alembic does not compare."""
    metadata.create_all(engine)
    wanted = schema(engine)
    if engine.dialect.name == "sqlite":
        wanted["order_events"]["key"]["constrained_columns"] = ["id"]
    metadata.drop_all(engine)
    command.upgrade(config, "head")
    assert schema(engine) == wanted
    assert any(table["checks"] for table in wanted.values())
    assert "unpaid" in repr(wanted["orders"]["indexes"])


def test_several_migrators_at_once_migrate_once(postgres_url: str) -> None:
    with ThreadPoolExecutor(3) as migrators:
        env = {"DATABASE_URL": postgres_url}
        done = [migrators.submit(run, ["alembic", "upgrade", "head"], env) for _ in range(3)]
        for each in done:
            each.result()
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        [revision] = connection.scalars(sa.text("SELECT version_num FROM alembic_version"))
    assert revision == SCHEMA_VERSION
    assert {i["name"] for i in sa.inspect(engine).get_indexes("orders")} == {
        "ix_orders_unpaid_expiry",
        "ix_orders_created",
        "ix_orders_expires",
        "uq_orders_idempotency_key",
        "ix_orders_reference",
        "ix_orders_expired",
    }


# -- 0003: keys on orders ------------------------------------------------------------------


class Before:
    """What the version before revision 0003 says to the database. One customer; tea at 250."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.customer = new_id()
        # Too simple for the times on SQLite, where nobody looks at them.
        self.now = "0" if engine.dialect.name == "sqlite" else "now()"

    def stock(self) -> None:
        self.run(
            "INSERT INTO api_clients (id, name, secret_hash, scopes, created_at)"
            " VALUES (:customer, 'shop', '', '', NOW)"
        )
        self.run("INSERT INTO stock_items VALUES ('tea', 1000000, 0, 250, 'EUR')")

    def run(self, *statements: str, **values: Any) -> list[Any]:
        """Run statements in one transaction; return what the first returns."""
        with self.engine.begin() as connection:
            done = [
                connection.execute(
                    sa.text(text.replace("NOW", self.now)), {"customer": self.customer, **values}
                )
                for text in statements
            ]
            return [*done[0]] if done[0].returns_rows else []

    def place(self, key: str) -> str:
        order_id = new_id()
        taken = self.run(
            "INSERT INTO idempotency_keys VALUES (:customer, :key, :fingerprint, :id, NOW)"
            " ON CONFLICT DO NOTHING RETURNING key",
            "UPDATE stock_items SET reserved = reserved + 1 WHERE sku = 'tea'",
            "INSERT INTO orders (id, customer_id, status, currency, total_minor, created_at,"
            " expires_at) VALUES (:id, :customer, 'unpaid', 'EUR', 250, NOW, NOW)",
            "INSERT INTO order_items VALUES (:id, 'tea', 1, 250)",
            "INSERT INTO order_events (order_id, type, at, data)"
            " VALUES (:id, 'order.created', NOW, '{}')",
            key=key,
            fingerprint=64 * "",
            id=order_id,
        )
        assert len(taken) == 1
        return order_id

    def pay(self, order_id: str, reference: str) -> bool:
        """Whether the reference was new."""
        noted = self.run(
            "INSERT INTO payments (id, order_id, provider, reference, amount_minor, currency,"
            " status, created_at) SELECT :payment, id, 'bank', :reference, 250, 'EUR', 'applied',"
            " NOW FROM orders WHERE id = :id ON CONFLICT DO NOTHING RETURNING id",
            payment=new_id(),
            reference=reference,
            id=order_id,
        )
        if noted:
            self.run(
                "UPDATE orders SET status = 'paid', paid_at = NOW WHERE id = :id",
                "INSERT INTO order_events (order_id, type, at, data)"
                " VALUES (:id, 'order.paid', NOW, '{}')",
                "UPDATE stock_items SET on_hand = on_hand - 1, reserved = reserved - 1",
                id=order_id,
            )
        return bool(noted)


@pytest.fixture
def before(engine: sa.Engine, config: Config) -> Before:
    """A database of the version before, with its statements."""
    command.upgrade(config, "0002_list_indexes")
    made = Before(engine)
    made.stock()
    return made


@pytest.fixture
def service(database_url: str) -> Iterator[OrderService]:
    engine = create_engine(Settings(database_url=database_url, redis_url="redis://nowhere"))
    yield OrderService(engine, RecordingScheduler(), Timeouts(1800, 1, 86_400))
    engine.dispose()


def repeat(service: OrderService, before: Before, key: str, quantity: int = 1) -> Placed:
    """A request that this version gets."""
    return service.place(
        before.customer,
        key=key,
        fingerprint="2:f",
        quantities={"tea": quantity},
        timeout_seconds=None,
    )


def test_orders_and_payments_of_before_are_replayed_after_the_migration(
    before: Before, config: Config, service: OrderService
) -> None:
    ids = [before.place(f"key-{n}") for n in range(3)]
    assert before.pay(ids[0], "r-1")

    command.upgrade(config, "head")

    for n, order_id in enumerate(ids):
        again = repeat(service, before, f"key-{n}")
        assert (again.replayed, again.order.id, again.order.status) == (True, order_id, "unpaid")
        with pytest.raises(KeyReused):
            repeat(service, before, f"key-{n}", quantity=2)
    payment: Any = {"provider": "bank", "amount_minor": 250, "currency": "EUR"}
    assert service.pay(before.customer, ids[0], reference="r-1", **payment).replayed
    assert not service.pay(before.customer, ids[1], reference="r-2", **payment).replayed
    assert service.order(before.customer, ids[0]).status == "paid"


def test_keys_and_references_are_moved_back_too(
    before: Before, engine: sa.Engine, config: Config, service: OrderService
) -> None:
    ids = [before.place("old")]
    command.upgrade(config, "head")
    ids.append(repeat(service, before, "new").order.id)
    for order_id in ids:
        service.pay(
            before.customer,
            order_id,
            provider="bank",
            reference=order_id,
            amount_minor=250,
            currency="EUR",
        )

    command.downgrade(config, "0002_list_indexes")

    keys = sa.text("SELECT key, order_id FROM idempotency_keys ORDER BY key DESC")
    with engine.connect() as connection:
        assert [(key, str(i)) for key, i in connection.execute(keys)] == [
            ("old", ids[0]),
            ("new", ids[1]),
        ]
    assert not before.pay(ids[1], ids[1])
    ids.append(before.place("newer"))

    command.upgrade(config, "head")

    for key, order_id in zip(("old", "new", "newer"), ids, strict=True):
        again = repeat(service, before, key)
        assert (again.replayed, again.order.id) == (True, order_id)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_version_before_works_on_during_the_migration(
    before: Before, engine: sa.Engine, config: Config, service: OrderService
) -> None:
    placed: dict[str, str] = {}
    done = threading.Event()

    def work(name: int) -> None:
        for n in itertools.count():
            if done.is_set():
                return
            key = f"{name}-{n}"
            placed[key] = before.place(key)
            assert before.pay(placed[key], key)
            assert not before.pay(placed[key], key)

    with ThreadPoolExecutor(3) as customers:
        working = [customers.submit(work, name) for name in range(3)]
        try:
            wait_until(lambda: len(placed) > 20, "some orders")
            command.upgrade(config, "head")
            enough = len(placed) + 20
            wait_until(lambda: len(placed) > enough or any(each.done() for each in working), "more")
        finally:
            done.set()
        for each in working:
            each.result()

    for key, order_id in placed.items():
        again = repeat(service, before, key)
        assert (again.replayed, again.order.id) == (True, order_id)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM pg_index WHERE NOT indisvalid")) == 0


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_one_key_makes_one_order_while_both_versions_run(
    before: Before, config: Config, service: OrderService
) -> None:
    command.upgrade(config, "head")
    order_id = before.place("old")
    again = repeat(service, before, "old")
    assert (again.replayed, again.order.id) == (True, order_id)
    assert not repeat(service, before, "new").replayed
    with pytest.raises(sa.exc.OperationalError) as refused:  # which it takes for an outage: 503
        before.place("new")
    assert sqlstate(refused.value) == LOCK_NOT_AVAILABLE
    assert before.run("SELECT reserved FROM stock_items") == [(2,)]


def test_an_interrupted_migration_goes_on(
    before: Before, config: Config, engine: sa.Engine
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("there it is one transaction")
    before.place("key")
    command.upgrade(config, "0004_events_by_order")
    command.stamp(config, "0002_list_indexes")
    command.upgrade(config, "head")
    command.check(config)


# -- 0005: keys of clients -----------------------------------------------------------------


def secret_and_hash() -> tuple[str, str]:
    secret = token_urlsafe(32)
    return secret, sha256(secret.encode()).hexdigest()


def test_keys_of_before_work_on_and_report_payments(
    before: Before, engine: sa.Engine, config: Config
) -> None:
    made = (
        "INSERT INTO api_clients (id, name, secret_hash, scopes, created_at)"
        " VALUES (:id, :name, :hash, :scopes, NOW)"
    )
    keys = {}
    for name, scopes in (("both", "ops orders"), ("buyer", "orders"), ("office", "ops")):
        keys[name], hashed = new_id(), secret_and_hash()
        before.run(made, id=keys[name], name=name, hash=hashed[1], scopes=scopes)
        keys[name] += "." + hashed[0]
    command.upgrade(config, "head")
    # The version before may still run, make a key, and overwrite a secret.
    late, hashed = new_id(), secret_and_hash()
    before.run(made, id=late, name="late", hash=hashed[1], scopes="orders")
    keys["late"] = f"{late}.{hashed[0]}"
    secret, overwritten = secret_and_hash()
    office = keys["office"].partition(".")[0]
    before.run(
        "UPDATE api_clients SET secret_hash = :hash WHERE id = :id", hash=overwritten, id=office
    )

    clients = Clients(engine)
    for name, allowed in (
        ("both", {"ops", "orders", "payments"}),
        ("buyer", {"orders", "payments"}),
        ("late", {"orders", "payments"}),
    ):
        told = clients.authenticate(keys[name])
        assert told is not None
        assert told.id == keys[name].partition(".")[0]
        assert told.scopes == allowed
    assert clients.authenticate(keys["office"]) is None
    assert clients.authenticate(f"{office}.{secret}")
    clients.revoke(late)
    [[left]] = before.run("SELECT secret_hash FROM api_clients WHERE id = :id", id=late)
    assert left == "", "the version before would go on taking it"

    command.downgrade(config, "0004_events_by_order")
    [[kept]] = before.run("SELECT secret_hash FROM api_clients WHERE id = :id", id=office)
    assert kept == overwritten
    command.upgrade(config, "head")
    assert Clients(engine).authenticate(f"{office}.{secret}")


# -- 0006: refunds -------------------------------------------------------------------------


def test_a_refund_is_replayed_after_a_downgrade_too(
    before: Before, config: Config, service: OrderService
) -> None:
    command.upgrade(config, "head")
    order_id = repeat(service, before, "key").order.id
    service.cancel(before.customer, order_id)
    payment = service.pay(
        before.customer,
        order_id,
        provider="bank",
        reference="r-1",
        amount_minor=250,
        currency="EUR",
    ).payment
    refunded = service.refund(before.customer, payment.id, reference="re-1")

    command.downgrade(config, "0005_keys_of_clients")
    command.upgrade(config, "head")

    again = service.refund(before.customer, payment.id, reference="re-1")
    assert again == (refunded.payment, True)


def test_keys_refunds_providers_and_indexes_are_migrated_again_after_an_interruption(
    engine: sa.Engine, config: Config
) -> None:
    """On SQLite, where each statement that defines something is committed by itself."""
    if engine.dialect.name != "sqlite":
        pytest.skip("there it is one transaction, or stops nobody and is tested above")
    revisions = (
        "0004_events_by_order",
        "0005_keys_of_clients",
        "0006_refunds",
        "0007_order_details",
        "0008_stock_adjustments",
        "0011_origins",
    )
    for revision in revisions:
        command.upgrade(config, "head")
        command.stamp(config, revision)
    command.upgrade(config, "head")
    command.check(config)


# -- 0010: providers -----------------------------------------------------------------------


def test_providers_come_and_go_and_what_they_reported_stays(
    before: Before, engine: sa.Engine, config: Config, service: OrderService
) -> None:
    command.upgrade(config, "head")
    order_id = repeat(service, before, "key").order.id
    endpoint, _ = Providers(engine).add("shop", "bank")
    payment: Any = {"provider": "bank", "amount_minor": 250, "currency": "EUR"}
    paid = service.pay(before.customer, order_id, reference="r-1", **payment)

    command.downgrade(config, "0008_stock_adjustments")
    assert {"provider_endpoints", "provider_secrets"}.isdisjoint(schema(engine))
    command.upgrade(config, "head")

    assert Providers(engine).list_endpoints() == []
    with pytest.raises(EndpointNotFound):
        Providers(engine).rotate(endpoint.id)
    again = service.pay(before.customer, order_id, reference="r-1", **payment)
    assert again == (paid.payment, True)


# -- 0008: stock adjustments ---------------------------------------------------------------


def test_stock_of_before_is_adjusted_and_listed_and_still_there_after_a_downgrade(
    before: Before, engine: sa.Engine, config: Config
) -> None:
    before.place("key")
    command.upgrade(config, "head")
    stock = StockService(engine)
    made = stock.adjust(
        "tea", client_id=before.customer, key="one", delta=-999_999, reason="counted"
    )
    assert [item.on_hand for item in stock.items(page_size=9)] == [1]
    # The version before may still run, and set stock as it always has.
    before.run("UPDATE stock_items SET on_hand = 5 WHERE sku = 'tea'")
    assert stock.adjustments("tea", page_size=9) == [made.adjustment]

    command.downgrade(config, "0007_order_details")
    assert before.run("SELECT on_hand, reserved FROM stock_items") == [(5, 1)]
    command.upgrade(config, "head")
    assert stock.adjustments("tea", page_size=9) == []


def test_an_interrupted_migration_of_stock_goes_on(engine: sa.Engine, config: Config) -> None:
    command.upgrade(config, "head")
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:  # as an interrupted build leaves it
            connection.execute(
                sa.text(
                    "UPDATE pg_index SET indisvalid = false"
                    " WHERE indexrelid = 'ix_stock_items_sku'::regclass"
                )
            )
    command.stamp(config, "0007_order_details")
    command.upgrade(config, "head")
    command.check(config)
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            invalid = connection.scalar(
                sa.text("SELECT count(*) FROM pg_index WHERE NOT indisvalid")
            )
        assert invalid == 0


def test_drift_would_be_found(engine: sa.Engine, config: Config) -> None:
    command.upgrade(config, "head")
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders ADD COLUMN note VARCHAR(10)"))
    with pytest.raises(CommandError, match="note"):
        command.check(config)


def test_the_code_was_written_for_the_newest_revision() -> None:
    scripts = ScriptDirectory.from_config(Config(ROOT / "alembic.ini"))
    assert scripts.get_heads() == [SCHEMA_VERSION]
    assert all(script.module.downgrade for script in scripts.walk_revisions())


def test_the_command_line_needs_a_database_by_name() -> None:
    with pytest.raises(RuntimeError, match="DATABASE_URL is not set"):
        run(["alembic", "upgrade", "head"], {"DATABASE_URL": ""})
    with pytest.raises(RuntimeError, match="offline mode is not supported"):
        run(["alembic", "upgrade", "head", "--sql"], {"DATABASE_URL": "sqlite:///none.db"})
