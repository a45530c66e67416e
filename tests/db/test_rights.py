"""Two roles of the database, one that migrates and one that serves, with the documented rights and no others."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa
from click.testing import CliRunner

from devtools.postgres import Postgres
from devtools.processes import ROOT, wait_until
from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.base import SEQUENCES, metadata
from orders.db.migrate import migrate
from orders.db.schema import check_ready
from orders.errors import StorageUnfit
from orders.order.domain import Order
from orders.queues import QUEUE
from orders.timeouts import flows
from orders.wiring import bootstrap
from tests.kit.api import serving
from tests.kit.databases import connected, empty_database
from tests.kit.features import findings
from tests.kit.length import quick_first
from tests.kit.shop import Shop, opened
from tests.kit.workers import running
from worker import DelayQueue, Worker

INSTALL = (ROOT / "docs" / "install.md").read_text()
GRANTS = INSTALL[INSTALL.index("GRANT CREATE") :].partition("```")[0]
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE")
RIGHTS = [(verb, table) for table in sorted(metadata.tables) for verb in VERBS]
RIGHTS += [(verb, sequence) for sequence in SEQUENCES for verb in ("SELECT", "USAGE")]


class Roles(NamedTuple):
    """The URLs of one database, for its owner and for two roles that may nothing yet."""

    owner: str
    migrator: str
    service: str

    def execute(self, statements: str) -> None:
        """As the owner, with the names of these roles."""
        for name in ("migrator", "service"):
            role = str(sa.make_url(getattr(self, name)).username)
            statements = re.sub(rf"\b{name}\b", role, statements)
        with connected(self.owner) as connection:
            connection.execute(statements.encode())


@contextmanager
def two_roles(postgres: Postgres) -> Iterator[Roles]:
    names = [f"{name}_{uuid4().hex}" for name in ("m", "s")]
    with empty_database(postgres) as url:
        owner = sa.make_url(url)
        urls = [owner.set(username=name).render_as_string(hide_password=False) for name in names]
        made = Roles(url, *urls)
        made.execute("CREATE ROLE migrator LOGIN; CREATE ROLE service LOGIN")
        made.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # as from PostgreSQL 15 on
        yield made
    for name in names:
        postgres.execute(f"DROP ROLE {name}")


@pytest.fixture(scope="module")
def bare(postgres: Postgres) -> Iterator[Roles]:
    with two_roles(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def roles(postgres: Postgres) -> Iterator[Roles]:
    """Migrated, with the rights of the documentation."""
    with two_roles(postgres) as made:
        made.execute(GRANTS)
        done = CliRunner(env={"DATABASE_URL": made.migrator}).invoke(migrate)
        assert done.exit_code == 0, done.output
        yield made


@pytest.fixture
def shop(roles: Roles) -> Iterator[Shop]:
    with opened(roles.service) as made:
        made.stock("tea", 100)
        yield made


def test_who_may_not_create_tables_is_told_the_grant(bare: Roles) -> None:
    done = CliRunner(env={"DATABASE_URL": bare.migrator}).invoke(migrate)
    user = sa.make_url(bare.migrator).username
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert f"GRANT CREATE ON SCHEMA public TO {user};" in done.output


def test_the_documented_rights_are_enough(
    roles: Roles, shop: Shop, valkey: Valkey, redis_client: redis.Redis
) -> None:
    paid, late = shop.place(), shop.place()
    shop.pay(paid)
    shop.expire_in(-1, late)
    with working(roles, valkey, redis_client, late) as worker:
        wait_until(lambda: worker.counts["done"] == 1, "the late order")
    assert {each.level for each in findings(shop.engine).values()} <= {"ok"}


def test_each_missing_right_is_seen_by_the_probe_and_the_doctor(roles: Roles, shop: Shop) -> None:
    for verb, name in RIGHTS:
        roles.execute(f"REVOKE {verb} ON {name} FROM service")
        with pytest.raises(StorageUnfit, match=f"lacks {verb} on {name}: docs/install.md"):
            check_ready(shop.engine)
        if name in ("stock_items", *SEQUENCES) and (found := findings(shop.engine)):
            assert f"lacks {verb} on {name}" in found["sql.fit"].advice
        roles.execute(f"GRANT {verb} ON {name} TO service")
    check_ready(shop.engine)


def test_a_missing_right_is_an_outage_for_requests(
    roles: Roles, valkey: Valkey, redis_client: redis.Redis
) -> None:
    assert redis_client.ping()
    began, ended = FAULTS["a right"]
    with serving(roles.service, valkey.url) as api:
        roles.execute(began)
        try:
            ready, placed = api.send("GET", "/readyz", key=None), api.place()
        finally:
            roles.execute(ended)
        assert ready.status_code == placed.status_code == 503
        assert "Its user lacks UPDATE on stock_items" in ready.json["database"]  # type: ignore[index]
        assert placed.json["code"] == "storage_unavailable"  # type: ignore[index]
        assert api.place().status_code == 201


STRIKE = """
CREATE FUNCTION strike() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF {condition} THEN RAISE SQLSTATE '{state}' USING MESSAGE = 'no audit'; END IF;
        RETURN new;
    END $$;
CREATE TRIGGER strike BEFORE INSERT ON order_events FOR EACH ROW EXECUTE FUNCTION strike()
"""
UNSTRUCK = "DROP FUNCTION strike CASCADE"
#: What strikes everybody who writes, and what ends that.
FAULTS = {
    "a right": (
        "REVOKE UPDATE ON stock_items FROM service",
        "GRANT UPDATE ON stock_items TO service",
    ),
    "a policy": (
        "ALTER TABLE order_items ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE order_items DISABLE ROW LEVEL SECURITY",
    ),
    "a trigger": (STRIKE.format(condition="true", state="P0001"), UNSTRUCK),
    "the disk": (STRIKE.format(condition="true", state="58030"), UNSTRUCK),
    "a bug": (STRIKE.format(condition="true", state="XX000"), UNSTRUCK),
}


@contextmanager
def working(roles: Roles, valkey: Valkey, client: redis.Redis, *late: Order) -> Iterator[Worker]:
    """A worker whose checks of these orders are due, and would be dead letters at once."""
    settings = Settings.of(
        database_url=roles.service,
        redis_url=valkey.url,
        max_failures=1,
        door_freeze_after_seconds=0,  # <freezes/>
    )
    services = bootstrap(settings)
    try:
        queue = DelayQueue(client, services.queue.name)
        queue.schedule_many((order.id, 1, b"") for order in late)
        worker = Worker(flows(services), valkey.url)
        with running(worker):
            yield worker
    finally:
        services.close()


@pytest.mark.parametrize(
    "fault", ["a right", "a policy", *quick_first(["a trigger", "the disk", "a bug"])]
)
def test_what_strikes_every_check_is_an_outage_that_passes(
    roles: Roles, shop: Shop, valkey: Valkey, redis_client: redis.Redis, fault: str
) -> None:
    """Checks of paid orders succeed all the while: they write nothing."""
    late, paid = [shop.place() for _ in range(20)], [shop.place() for _ in range(40)]
    shop.expire_in(-1, *late)
    for order in paid:
        shop.pay(order)
    queue = DelayQueue(redis_client, QUEUE)

    def statuses() -> set[str]:
        return {shop.statuses()[order.id] for order in late}

    def with_paid(condition: Callable[[], bool]) -> bool:
        queue.schedule_many((order.id, 1, b"") for order in paid)
        return condition()

    began, ended = FAULTS[fault]
    roles.execute(began)
    with ExitStack() as ending:
        ending.callback(roles.execute, ended)
        with working(roles, valkey, redis_client, *late, *paid) as worker:
            wait_until(lambda: with_paid(lambda: struck(worker, fault)), "it to notice")
            assert "cancelled" not in statuses()
            ending.close()
            wait_until(
                lambda: with_paid(lambda: statuses() == {"cancelled"}), "all to be cancelled"
            )
            wait_until(lambda: worker.health().status == "ok", "it to be well")
    assert not {"failed", "dead"} & worker.counts.keys()


def struck(worker: Worker, fault: str) -> bool:
    """Whether it is down, after more checks than would count, if they did."""
    counts = worker.counts
    tried = fault in ("a right", "a policy") or min(counts["retried"], counts["done"]) > 10
    return tried and worker.health().status == "degraded"


def test_what_strikes_one_order_alone_is_its_dead_letter(
    roles: Roles, shop: Shop, valkey: Valkey, redis_client: redis.Redis
) -> None:
    late = [shop.place() for _ in range(20)]
    shop.expire_in(-1, *late)
    condition = f"new.order_id = '{late[0].id}'"
    roles.execute(STRIKE.format(condition=condition, state="XX000"))
    with ExitStack() as ending:
        ending.callback(roles.execute, UNSTRUCK)
        with working(roles, valkey, redis_client, *late) as worker:
            wait_until(lambda: worker.counts["done"] == len(late) - 1, "the others")
            wait_until(lambda: worker.counts["dead"] == 1, "the dead letter")
    [letter] = DelayQueue(redis_client, QUEUE).dead()
    assert (letter.id, "no audit" in str(letter)) == (late[0].id, True)
