"""Why an order is still unpaid: each cause made real, and told alike by the command, the page and the API."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from devtools.processes import free_port, wait_until
from devtools.valkey import Valkey
from orders.db.database import reading
from orders.db.tables import stock_items, unpaid_orders
from orders.features.freezes.domain import FREEZE_QUEUE  # <freezes/>
from orders.features.freezes.service import Freezes  # <freezes/>
from orders.features.providers.attempts.domain import ATTEMPT_QUEUE  # <providers/>
from orders.features.providers.attempts.flow import attempt_flow  # <providers/>
from orders.features.providers.service import Providers  # <providers/>
from orders.features.providers.tables import payment_attempts  # <providers/>
from orders.queues import QUEUE, queue_names
from orders.timeouts import timeout_flow
from tests.kit.api import Api, run, serving
from tests.kit.moments import later, now
from tests.kit.workers import running
from tests.ops.page import Page  # <ops/>
from worker import DelayQueue, Flow, Worker
from worker.runtime import pauses

UTC = r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? UTC"
#: What passes between two looks.
PASSING = re.compile(r"[\d.,]+ (ms|s|min|h)\b")


class Case:
    """An order, overdue by a minute or as much as the cause says, whose check is due; and a live worker."""

    def __init__(self, api: Api) -> None:
        self.api, self.services = api, api.services
        # <ops>
        self.page = Page(api)
        # </ops>
        self.queue = DelayQueue(api.services.redis, QUEUE)
        self.id = str(api.place().get_json()["id"])
        wait_until(lambda: self.queue.look_up(self.id), "its check to be scheduled")
        self.live()
        self.move(-60)
        self.queue.schedule(self.id, delay_ms=0)

    def live(self, *, up: bool = True) -> None:
        for name in queue_names():
            DelayQueue(self.services.redis, name).beat("w-1", {"up": up})

    def move(self, seconds: int) -> None:
        with self.services.engine.begin() as connection:
            moved = sa.update(unpaid_orders).values(expires_at=later(now(), "ms"))
            connection.execute(moved, {"ms": 1000 * seconds})

    def attempt(self, reference: str, seconds: int) -> None:
        body = {"provider": "bank", "reference": reference, "seconds": seconds}
        opened = self.api.send("POST", f"/v1/orders/{self.id}/payment-attempts", body)
        assert opened.status_code == 201

    def execute(self, *statements: str) -> None:
        with self.services.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def work(self, until: Callable[[], object], flow: Flow | None = None) -> None:
        """Let a worker run until something has happened."""
        flow = flow or timeout_flow(self.services)
        with running(Worker([flow], self.services.settings.redis_url)):
            wait_until(until, "the worker to have met it")

    def told(self) -> list[str]:
        """The causes, which all three agree on."""
        found = self.api.send("GET", f"/v1/orders/{self.id}", key="ops").get_json()["why_unpaid"]
        printed = run(self.api, "why", self.id).stdout.splitlines()[-len(found) :]
        assert steady(found) == steady(printed)
        # <ops>
        assert steady(found) == steady(self.page.why(self.id))
        # </ops>
        return [*found]


def steady(causes: list[str]) -> list[str]:
    return [PASSING.sub("", each) for each in causes]


Cause = Callable[[Case], AbstractContextManager[object]]
CAUSES: dict[str, tuple[Cause, str]] = {}


def cause(expected: str) -> Callable[[Callable[[Case], Iterator[object]]], None]:
    """What is told while the generator stands at its yield, which may yield the pid in ``expected``."""

    def add(function: Callable[[Case], Iterator[object]]) -> None:
        CAUSES[function.__name__.replace("_", " ").strip()] = contextmanager(function), expected

    return add


@cause(rf"not due yet: its deadline is {UTC}, in 1. min")
def not_due(case: Case) -> Iterator[None]:
    """What ends before the deadline keeps nothing."""
    case.move(1000)
    case.attempt("tx-1", 60)  # <providers/>
    # <freezes>
    Freezes(case.services.engine).open(None, reason="no terminal", by="anna", seconds=60)
    # </freezes>
    yield


@cause("overdue by 6. s: the next free worker cancels it")
def about_to_be_cancelled(_: Case) -> Iterator[None]:
    yield


# <providers>
@cause(rf"kept until {UTC} at the latest\nkept by payment attempt tx-1 at bank, tx-2 at bank")
def kept(case: Case) -> Iterator[None]:
    case.move(1000)
    for reference in ("tx-1", "tx-2"):
        case.attempt(reference, 600)
    case.move(-60)
    yield


# </providers>


@cause(rf"kept until {UTC} at the latest")
def kept_by_something_else(case: Case) -> Iterator[None]:
    case.execute("UPDATE unpaid_orders SET kept_until = now() + interval '1 h'")
    yield


# <providers>
@cause(
    rf"kept until {UTC} at the latest\nkept by payment attempt tx-1 at bank\n"
    r"closing its attempt put off \d times?: "
    r"GatewayUnavailable: .*; next try in \d+ s"
)
def asking(case: Case) -> Iterator[None]:
    """Nobody listens there."""
    url = f"http://127.0.0.1:{free_port()}/close"
    case.services[Providers].add("customer", "bank", url)
    case.attempt("tx-1", 600)
    case.execute("UPDATE payment_attempts SET ends_at = now() - interval '1 s'")
    attempts = DelayQueue(case.services.redis, ATTEMPT_QUEUE)

    def is_put_off() -> bool:
        return any(each.error for each in attempts.look_up_many(attempts_of(case)).values())

    case.work(is_put_off, attempt_flow(case.services))
    case.live()
    yield


def attempts_of(case: Case) -> list[str]:
    with case.services.engine.connect() as connection:
        return [*connection.scalars(sa.select(payment_attempts.c.id))]


# </providers>


# <freezes>
@cause(rf"stopped by freeze \S+ of client customer until {UTC}, by anna: no terminal")
def frozen(case: Case) -> Iterator[None]:
    """Although many others end before it."""
    service = Freezes(case.services.engine)
    for client in (*100 * ["other"], "customer"):
        service.open(client, reason="no terminal", by="anna", seconds=600)
    yield


GIVING_BACK = (
    rf"stopped by freeze \S+ of everything until {UTC}, by anna: no terminal \(giving back time\)"
)


def thaw(case: Case) -> None:
    service = Freezes(case.services.engine)
    made, _ = service.open(None, reason="no terminal", by="anna", seconds=600)
    service.thaw(made.id, by="anna")


@cause(GIVING_BACK)
def still_thawing(case: Case) -> Iterator[None]:
    """Whatever is overdue waits for it, even what it gives no time back."""
    thaw(case)
    with case.services.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE freezes SET ends_at = ends_at - interval '1 day'")
    yield


@cause(rf"{GIVING_BACK}\nthe queue freezes is paused by anna since {UTC}: a restore")
def not_thawing(case: Case) -> Iterator[None]:
    queue, kept = (
        DelayQueue(case.services.redis, FREEZE_QUEUE),
        case.services.pauses_of(FREEZE_QUEUE),
    )
    pauses.pause(queue, kept, reason="a restore", by="anna")
    thaw(case)
    yield
    pauses.resume(queue, kept)


# </freezes>


@cause(
    r"pid PID has held locks on unpaid_orders since \d\d:\d\d:\d\d UTC \(.*, idle in transaction\)"
)
def locked(case: Case) -> Iterator[int]:
    with case.services.engine.begin() as stranger:
        stranger.execute(sa.select(unpaid_orders).with_for_update())
        yield stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()


@cause(r"pid PID has held locks on stock_items since .* UTC.*")
def stock_locked(case: Case) -> Iterator[int]:
    with case.services.engine.begin() as stranger:
        stranger.execute(sa.select(stock_items).with_for_update())
        yield stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()


@cause(r"pid PID has held locks on order_events, stock_items, stops since .* UTC \(.*\)")
def tables_locked(case: Case) -> Iterator[int]:
    """As creating an index does, or altering a table."""
    with case.services.engine.begin() as stranger:
        stranger.exec_driver_sql("LOCK stock_items, order_events IN SHARE MODE; LOCK stops")
        yield stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()


@cause(r"pid \d+ has held locks on unpaid_orders since .* UTC \(.*, active, waits for pid PID\)")
def locked_by_one_who_waits(case: Case) -> Iterator[int]:
    with (
        ThreadPoolExecutor(1) as pool,
        case.services.engine.begin() as other,
        case.services.engine.begin() as stranger,
    ):
        last = other.execute(sa.text("SELECT pg_backend_pid() FROM pg_advisory_xact_lock(7)"))
        stranger.execute(sa.select(unpaid_orders).with_for_update())
        pid = stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        waiting = pool.submit(stranger.execute, sa.text("SELECT pg_advisory_xact_lock(7)"))
        wait_until(lambda: blocked(pid, case), "it to wait")
        yield last.scalar_one()
        other.rollback()
        waiting.result()


@cause(r"prepared transaction a payment has held locks on unpaid_orders since .* UTC")
def prepared(case: Case) -> Iterator[None]:
    case.execute("BEGIN; SELECT FROM unpaid_orders FOR UPDATE; PREPARE TRANSACTION 'a payment'")
    try:
        yield
    finally:
        with reading(case.services.engine) as connection:
            connection.exec_driver_sql("ROLLBACK PREPARED 'a payment'")


def blocked(pid: int, case: Case) -> bool:
    with case.services.engine.connect() as connection:
        found = connection.execute(sa.text("SELECT pg_blocking_pids(:pid)"), {"pid": pid})
        return bool(found.scalar_one())


@cause(rf"the queue order-timeout is paused by anna since {UTC}: a restore")
def paused(case: Case) -> Iterator[None]:
    kept = case.services.pauses_of(QUEUE)
    pauses.pause(case.queue, kept, reason="a restore", by="anna")
    yield
    pauses.resume(case.queue, kept)


@cause(rf"its check is a dead letter since {UTC}: an order's check has no payload")
def dead(case: Case) -> Iterator[None]:
    case.queue.schedule(case.id, None, b"x", delay_ms=0)
    case.work(lambda: case.queue.stats().dead)
    case.live()
    yield


@cause(r"its check failed 1 time: .*on purpose; next try in \d+ s")
def failing(case: Case) -> Iterator[None]:
    case.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'on purpose'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON order_events FOR EACH ROW "
        f"WHEN (NEW.order_id = '{case.id}') EXECUTE FUNCTION refuse()",
    )
    case.work(lambda: (state := case.queue.look_up(case.id)) and state.failures)
    case.live()
    yield
    case.execute("DROP TRIGGER refuse ON order_events", "DROP FUNCTION refuse")


@cause("Redis has lost its check: the next sweep of a worker restores it")
def lost(case: Case) -> Iterator[None]:
    case.queue.cancel(case.id)
    yield


@cause(rf"its check has been held by worker w-2 since {UTC}")
def in_hand(case: Case) -> Iterator[None]:
    def claimed() -> bool:
        for task in case.queue.claim(1, 60_000).tasks:
            case.queue.beat("w-2", {"leases": [task.token[:12]]})
        return case.queue.stats().leased == 1

    wait_until(claimed, "it to be due")
    yield


@cause("nothing is cancelled: .*\nwhether the queue order-timeout is paused is not known: .*")
def pauses_unreadable(case: Case) -> Iterator[None]:
    case.execute("ALTER TABLE queue_pauses RENAME TO gone")
    yield
    case.execute("ALTER TABLE gone RENAME TO queue_pauses")


@cause("no worker of order-timeout is running, or none reaches Redis")
def no_worker(case: Case) -> Iterator[None]:
    case.queue.sign_off("w-1")
    yield


@cause("every worker of order-timeout is down: its log says why")
def down(case: Case) -> Iterator[None]:
    case.live(up=False)
    yield


@cause("nothing is cancelled: The database is read-only.*")
def read_only(case: Case) -> Iterator[None]:
    name = case.services.engine.url.database
    case.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    engines = (case.services.engine, case.services.watching)
    for engine in engines:
        engine.dispose()
    yield
    case.execute("SET transaction_read_only = off", f"ALTER DATABASE {name} RESET ALL")
    for engine in engines:
        engine.dispose()


@pytest.mark.usefixtures("redis_client")
@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_told_alone_and_everywhere(
    migrated_url: str, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("orders.features.why.locked.LONG_MS", 0)
    settings: dict[str, Any] = {
        "statement_timeout_seconds": 9.5,
        "lock_timeout_seconds": 9.0,
        "retry_base_seconds": 600.0,
        "retry_cap_seconds": 600.0,
        "webhook_allow_private": True,  # <providers/>
    }
    with serving(migrated_url, valkey.url, **settings) as api:
        case, (make, expected) = Case(api), CAUSES[name]
        with make(case) as pid:
            told = "\n".join(case.told())
    assert re.fullmatch(expected.replace("PID", str(pid)), told), told


# <ops>
def test_who_locks_out_all_readers_is_told(api: Api) -> None:
    case = Case(api)
    with case.services.engine.begin() as stranger:
        stranger.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        stranger.execute(sa.text("LOCK TABLE freezes IN ACCESS EXCLUSIVE MODE"))
        pid = stranger.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        [shown] = case.page.why(case.id)
        stranger.execute(sa.text("LOCK TABLE unpaid_orders IN ACCESS EXCLUSIVE MODE"))
        told = run(case.api, "why", case.id).stdout
    assert shown.startswith(f"pid {pid} has held locks on freezes since ")
    assert told.startswith(f"pid {pid} has held locks on freezes, unpaid_orders since ")


# </ops>


# <freezes>
def test_several_causes_are_all_told(api: Api, redis_client: redis.Redis) -> None:
    case = Case(api)
    Freezes(api.services.engine).open(None, reason="a restore", by="anna", seconds=600)
    redis_client.flushall()
    frozen, alone, lost = case.told()
    assert "a restore" in frozen
    assert "lost" in lost
    assert "no worker" in alone


# </freezes>


def test_without_redis_what_sql_knows_is_told(migrated_url: str) -> None:
    with serving(migrated_url, f"redis://127.0.0.1:{free_port()}/0") as api:
        order = api.place().get_json()
        told = api.send("GET", f"/v1/orders/{order['id']}", key="ops").get_json()["why_unpaid"]
    assert re.match("not due yet: ", told[0])
    assert re.match("Redis does not answer: ", told[1])


def test_only_operators_are_told_and_only_of_an_unpaid_order(api: Api) -> None:
    case = Case(api)
    path = f"/v1/orders/{case.id}"
    asked = api.send("GET", path, key="ops")
    assert "why_unpaid" not in api.send("GET", path).get_json()
    case.live(up=False)
    body, match = {"metadata": {"a": 1}}, {"If-Match": asked.headers["ETag"]}
    assert api.send("PATCH", path, body, headers=match).status_code == 200, "it has the version"
    api.pay(case.id)
    assert "why_unpaid" not in api.send("GET", path, key="ops").get_json()
    assert case.page.why(case.id) == []  # <ops/>
    assert run(api, "why", case.id.upper()).stdout == "it is paid\n"
    assert run(api, "why", "cart-7").exit_code == 2
