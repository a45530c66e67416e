"""A table as a flow's truth, with the engine as an application has it."""

import enum
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
)

from devtools.postgres import Postgres
from devtools.processes import ROOT, wait_until
from devtools.valkey import Valkey
from examples.seat_reservation import seats
from tests.kit.clock import bound
from tests.kit.databases import empty_database
from tests.kit.hall import ENGINES, TWO, TYPES, Deciding, Hall, made, own_hall, queue_of
from tests.kit.length import quick_first, rounds
from tests.kit.races import duels, together
from tests.kit.reads import watched
from tests.kit.theatre import EXAMPLE, Theatre, theatre
from tests.kit.workers import frozen
from worker import DeadLetter, NoOp, Retry, Task, Unavailable, connect
from worker.records import CONFLICT_RETRIES, Records, TablePauses, pauses_table

KINDS = pytest.mark.parametrize("kind", [Hall, Deciding])


@pytest.fixture
def hall(engine: sa.Engine) -> Hall:
    return Hall(engine)


# -- the example ---------------------------------------------------------------------------


def test_the_guide_shows_the_example() -> None:
    guide = (ROOT / "docs" / "writing-a-flow.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL)
    [flow] = [block for block in shown if "-> Records:" in block]
    assert flow in EXAMPLE.read_text()
    assert "`python -m examples seat_reservation`" in guide


@pytest.fixture
def house(records_url: str, valkey: Valkey, tmp_path: Path) -> Iterator[Theatre]:
    """The example, and whatever its seats go through."""
    with connect(valkey.url) as client:
        client.flushall()
    with theatre(records_url, valkey.url, tmp_path) as house:
        yield house


def test_seats_are_held_paid_for_and_released_by_a_real_worker(house: Theatre) -> None:
    worker = house.start_worker()
    with house.engine.begin() as connection:
        connection.execute(seats.insert(), [{"id": seat} for seat in ("A1", "A2", "A3")])
    soon, later = house.door(1), house.door()

    with frozen(worker):  # the second may pass meanwhile
        assert soon.post("/seats/A1/hold?by=ada").json == {"seat": "A1", "status": "held"}
        assert soon.post("/seats/A2/hold?by=ada").status_code == 200
        assert later.post("/seats/A3/hold?by=ada").status_code == 200
        assert later.post("/seats/A1/hold?by=ada").status_code == 409
        assert soon.post("/seats/A2/pay?by=ada").json == {"seat": "A2", "status": "sold"}

    wait_until(lambda: house.statuses()["A1"] == "free", "the first seat to be free")
    wait_until(lambda: house.queue.stats().scheduled == 1, "the paid seat's task to end")

    assert house.statuses() == {"A1": "free", "A2": "sold", "A3": "held"}
    house.assert_each_was_freed_once(["A1"], latest_ms=bound(3000))
    assert soon.post("/seats/A1/pay?by=ada").status_code == 409
    assert later.post("/seats/A1/hold?by=bob").status_code == 200
    assert later.post("/seats/A1/pay?by=ada").status_code == 409, "it is bob's by now"
    assert later.post("/seats/A1/hold").status_code == 400


def test_a_seat_is_free_again_after_ten_minutes_and_not_before(house: Theatre) -> None:
    with house.engine.begin() as connection:
        connection.execute(seats.insert().values(id="A1"))
    began_ms = round(time.time() * 1000)
    assert house.door().post("/seats/A1/hold?by=ada").status_code == 200
    wait_until(lambda: house.queue.stats().scheduled, "it to be scheduled, in the background")
    assert house.queue.claim(9, 1000, now_ms=began_ms + 599_000).tasks == []
    [task] = house.queue.claim(9, 1000, now_ms=began_ms + 660_000).tasks
    handler = house.holds.flow().handler
    assert isinstance((handler([task]) or {})["A1"], Retry)  # SQL's clock has not moved
    move = seats.update().values(held_until=house.holds.after(-1))
    with house.engine.begin() as connection:
        connection.execute(move)
    assert not handler([task])
    assert house.statuses() == {"A1": "free"}


# -- one batch -----------------------------------------------------------------------------


def test_only_what_is_pending_and_due_is_handled(hall: Hall) -> None:
    hall.add("due", "also due")
    hall.add("sold", status="sold")
    hall.add("later", seconds=60)
    given = [Task(each) for each in ("sold", "later", "due", "absent", "also due")]
    outcomes = hall.flow.handler(given) or {}
    assert hall.handled == [["also due", "due"]]
    assert outcomes.keys() == {"later", "sold", "absent"}
    assert {type(outcomes["sold"]), type(outcomes["absent"])} == {NoOp}
    assert isinstance(retry := outcomes["later"], Retry)
    assert 55_000 < retry.delay_ms <= 60_000
    assert hall.statuses() == {"due": "free", "also due": "free", "sold": "sold", "later": "held"}


def test_a_record_is_never_handled_early(hall: Hall) -> None:
    began = time.monotonic()
    hall.add("soon", seconds=0.3)
    while outcomes := hall.run("soon"):
        [retry] = outcomes.values()
        assert isinstance(retry, Retry)
        assert retry.delay_ms >= 1
    assert time.monotonic() - began >= 0.28
    assert hall.handled == [["soon"]]


def test_what_the_handler_leaves_pending_and_due_fails(hall: Hall) -> None:
    hall.add("A1", "A2")
    hall.handle = lambda connection, ids: hall.release(connection, ids[:1])
    with pytest.raises(RuntimeError, match="1 of 2 records are still pending and due: A2"):
        hall.run("A1", "A2")
    assert hall.statuses() == {"A1": "held", "A2": "held"}


def test_a_handler_may_move_the_deadline(hall: Hall) -> None:
    hall.add("A1")
    hall.handle = lambda connection, _ids: connection.execute(
        hall.seats.update().values(held_until=hall.records.after(30))
    )
    [retry] = hall.run("A1").values()
    assert isinstance(retry, Retry)
    assert 25_000 < retry.delay_ms <= 30_000


def test_a_handler_that_raises_changes_nothing(hall: Hall) -> None:
    hall.add("A1")

    def fail(connection: sa.Connection, ids: Sequence[Any]) -> None:
        hall.release(connection, ids)
        raise DeadLetter("no such hall")

    hall.handle = fail
    with pytest.raises(DeadLetter, match="no such hall"):
        hall.run("A1")
    assert hall.statuses() == {"A1": "held"}


def test_a_missing_or_far_due_time_is_no_appointment(hall: Hall) -> None:
    hall.add("century", seconds=100 * 366 * 86_400)
    with hall.engine.begin() as connection:
        connection.execute(hall.seats.insert().values(id="never", status="held"))
    assert hall.run("century", "never") == {}
    assert hall.sweep(None, 3600) == []
    assert hall.handled == []


@KINDS
def test_what_somebody_else_has_locked_is_looked_at_again(
    engine: sa.Engine, kind: type[Hall]
) -> None:
    hall = kind(engine)
    hall.add("A1", "A2")
    with hall.engine.begin() as paying:
        paying.execute(hall.seats.update().where(hall.seats.c.id == "A1").values(status="sold"))
        outcomes = hall.run("A1", "A2")
        again: Any = hall.flow.handler([Task("A1", attempt=9)])
    [retry] = outcomes.values()
    assert type(retry) is Retry
    assert [*outcomes] == ["A1"]
    assert 0 < retry.delay_ms <= 50
    assert 500 <= again["A1"].delay_ms <= 1000
    assert hall.run("A1") == {}
    assert hall.statuses() == {"A1": "sold", "A2": "free"}


# -- types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_ids_of_any_type_become_task_ids_and_come_back(engine: sa.Engine, kind: str) -> None:
    id_type, ids = TYPES[kind]
    hall = Hall(engine, id_type=id_type)
    hall.add(*ids)
    found = [due.id for due in hall.sweep()]
    assert {*found} == {str(each) for each in ids}
    pages = Records.flow(hall.records, batch_size=1).sweep
    assert pages is not None
    assert [due.id for page in pages(None, 0) for due in page] == found
    assert hall.run(*found) == {}
    [handled] = hall.handled
    assert sorted(handled, key=str) == sorted(ids, key=str)
    assert {type(each) for each in handled} == {type(each) for each in ids}
    assert {*hall.statuses().values()} == {"free"}


@pytest.mark.parametrize(
    ("kind", "task_id"),
    [
        ("text", "a\0b"),
        ("text", "\udc80"),
        ("integer", "x"),
        ("integer", "07"),
        ("integer", "1_0"),
        ("integer", str(2**64)),
        ("uuid", "x"),
        ("uuid", str(UUID(int=2**127 + 10)).upper()),
        ("uuid", TWO.hex),
    ],
)
def test_an_id_that_no_record_has_is_a_dead_letter(
    engine: sa.Engine, kind: str, task_id: str
) -> None:
    id_type, [good, _] = TYPES[kind]
    hall = Hall(engine, id_type=id_type)
    hall.add(good)
    outcomes = hall.run(task_id, str(good))
    assert [type(outcome) for outcome in outcomes.values()] == [DeadLetter]
    assert [*outcomes] == [task_id]
    assert hall.handled == [[good]]


def test_a_long_text_is_not_cut_to_another_records_id(engine: sa.Engine) -> None:
    hall = Hall(engine, id_type=sa.String(5))
    hall.add("12345")
    assert hall.run("123456") == {}
    assert hall.handled == []


def test_another_spelling_of_an_id_harms_no_task_beside_it(engine: sa.Engine) -> None:
    nocase = "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE COLLATION nocase {nocase}")
    except sa.exc.NotSupportedError as error:
        pytest.skip(f"this PostgreSQL has no ICU: {error}")
    hall = Hall(engine, id_type=sa.Text(collation="nocase"))
    hall.add("a", seconds=60)
    hall.add("b", seconds=60)
    assert hall.run("A", "b").keys() == {"b"}


class Status(enum.Enum):
    held = 1
    free = 2


def test_pending_is_any_condition(engine: sa.Engine) -> None:
    column: sa.ColumnClause[Any] = sa.column("status", sa.Enum(Status))
    chosen = sa.and_(column.in_([Status.held]), sa.column("id", sa.Text).not_like("%'x"))
    hall = Hall(engine, status_type=sa.Enum(Status), pending=chosen)
    hall.add("50%", "50%'x")
    assert [due.id for due in hall.sweep()] == ["50%"]
    assert hall.run("50%", "50%'x") == {}
    assert hall.handled == [["50%"]]


def test_a_mapped_class_will_do(engine: sa.Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class Seat(Base):
        __tablename__ = "seats"
        id: Mapped[int] = mapped_column(primary_key=True)
        sold: Mapped[bool]
        until: Mapped[datetime] = mapped_column(sa.TIMESTAMP(timezone=True))

    def release(connection: sa.Connection, ids: Sequence[int]) -> None:
        connection.execute(sa.delete(Seat).where(Seat.id.in_(ids)))

    queue = queue_of()
    holds = Records(
        engine, id=Seat.id, due=Seat.until, pending=~Seat.sold, handle=release, queue=queue
    )
    holds.index()
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Seat(id=7, sold=False, until=holds.after(-1)))
    flow = holds.flow()
    assert flow.sweep is not None
    assert [due.id for page in flow.sweep(None, 0) for due in page] == ["7"]
    assert flow.handler([Task("7")]) == {}
    assert [page for page in flow.sweep(None, 0) if page] == []


@pytest.mark.parametrize(
    ("id_type", "due_type"),
    [
        (sa.Text, sa.DateTime),
        (sa.Text, sa.BigInteger),
        (sa.CHAR(5), sa.TIMESTAMP(timezone=True)),
        (sa.Numeric, sa.TIMESTAMP(timezone=True)),
        (sa.Enum("a"), sa.TIMESTAMP(timezone=True)),
    ],
)
def test_a_column_of_another_type_is_refused(id_type: Any, due_type: Any) -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("id", id_type), sa.Column("due", due_type))
    with pytest.raises(TypeError, match=r"t\.(id|due) must be "):
        Records(
            sa.create_engine("postgresql+psycopg://"),
            id=table.c.id,
            due=table.c.due,
            pending=sa.true(),
            handle=lambda _connection, _ids: None,
            queue=queue_of(),
        )


# -- the sweep -----------------------------------------------------------------------------


def test_the_sweep_pages_by_due_time_and_id(hall: Hall) -> None:
    with hall.engine.begin() as connection:
        same = datetime(2026, 1, 1, tzinfo=UTC)
        rows = [{"id": f"s{n:02}", "status": "held", "held_until": same} for n in range(25)]
        connection.execute(hall.seats.insert(), rows)
    hall.add("soon", seconds=20)
    hall.add("latest", seconds=100)
    hall.add("sold", status="sold")
    sweep = hall.records.flow(batch_size=10).sweep
    assert sweep is not None
    pages = [[due.id for due in page] for page in sweep(None, 60)]
    assert [len(page) for page in pages] == [10, 10, 6]
    assert [seat for page in pages for seat in page] == [*(f"s{n:02}" for n in range(25)), "soon"]
    [soon] = hall.sweep(0, 60)
    assert 15_000 < soon.delay_ms <= 20_000


def put(hall: Hall, seat: str, due: str) -> None:
    """A seat whose due time another program wrote, as SQL."""
    with hall.engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO seats VALUES ('{seat}', 'held', {due})")  # noqa: S608


def test_a_due_time_before_all_that_python_knows_is_overdue(hall: Hall) -> None:
    put(hall, "1", "'-infinity'")
    put(hall, "2", "'-infinity'")
    put(hall, "3", "'0044-03-15 12:00:00 BC'")
    hall.add("4")
    sweep = hall.records.flow(batch_size=1).sweep
    assert sweep is not None
    assert [due.id for page in sweep(None, 0) for due in page] == [*"1234"]
    assert all(due.delay_ms < 0 for due in hall.sweep())
    assert hall.run(*"1234") == {}
    assert {*hall.statuses().values()} == {"free"}


# -- races ---------------------------------------------------------------------------------


def test_a_payment_and_an_expiry_at_the_deadline_have_one_winner(house: Theatre) -> None:
    pairs = rounds(100, 1_000)
    ids = house.hold_many(pairs, -60, -60, scheduled=False)
    flow = house.holds.flow()
    app = house.door().application

    def pay(seat: str) -> bool:
        return app.test_client().post(f"/seats/{seat}/pay?by=ada").status_code == 200

    def expire(seat: str) -> bool:
        flow.handler([Task(seat)])
        return False  # the tables tell

    paid = {*duels(pay, expire, ids, step_us=20)[0]}
    statuses = house.statuses()
    assert {seat for seat, status in statuses.items() if status == "sold"} == paid
    assert {*statuses.values()} == {"sold", "free"}
    assert pairs // 10 <= len(paid) <= pairs - pairs // 10
    assert sorted(seat for seat, _ in house.freed()) == sorted({*ids} - paid)


def test_overlapping_batches_free_each_seat_once(house: Theatre) -> None:
    ids = house.hold_many(300, -60, -60, scheduled=False)
    flow = house.holds.flow()

    def expire(seed: int) -> None:
        left = random.Random(seed).sample(ids, len(ids))
        while left:
            batch, left = left[:40], left[40:]
            outcomes = flow.handler([Task(seat) for seat in batch]) or {}
            left += [seat for seat, made in outcomes.items() if not isinstance(made, NoOp)]

    together(*(lambda seed=seed: expire(seed) for seed in range(4)))
    assert sorted(seat for seat, _ in house.freed()) == sorted(ids)


# -- engines -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENGINES)
def test_a_batch_is_one_transaction_whatever_the_engine(records_url: str, kind: str) -> None:
    engine = ENGINES[kind](records_url)
    hall = Hall(engine)
    hall.add("A1", "A2")

    def fail(connection: sa.Connection, ids: Sequence[Any]) -> None:
        hall.release(connection, ids)
        with engine.connect() if kind != "one connection" else connection as other:
            found = other.execute(sa.select(hall.seats.c.status)).scalars().all()
            assert kind == "one connection" or {*found} == {"held"}
        raise ValueError("at the end")

    hall.handle = fail
    with pytest.raises(ValueError, match="at the end"):
        hall.run("A1", "A2")
    assert {*hall.statuses().values()} == {"held"}
    hall.handle = hall.release
    assert hall.run("A1", "A2") == {}
    assert {*hall.statuses().values()} == {"free"}
    assert hall.sweep() == []
    hall.probe()
    engine.dispose()


def test_other_databases_are_refused() -> None:
    engine = sa.create_mock_engine("mysql://", lambda *_: None)
    pauses = pauses_table(sa.MetaData())
    names = {"id": pauses.c.queue, "due": pauses.c.paused_at}
    more: dict[str, Any] = {"pending": sa.true(), "handle": print, "queue": None}
    with pytest.raises(ValueError, match="not in mysql"):
        Records(engine, **names, **more)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not in mysql"):
        TablePauses(engine, pauses, "seats")  # type: ignore[arg-type]


# -- outages -------------------------------------------------------------------------------


def assert_unavailable(hall: Hall, *ids: str) -> None:
    for call in (lambda: hall.run(*ids), hall.sweep, hall.probe):
        with pytest.raises(Unavailable):
            call()


@KINDS
def test_a_server_that_is_down_is_an_outage(own_postgres: Postgres, kind: type[Hall]) -> None:
    with own_hall(own_postgres, kind) as hall:
        hall.add("A1")
        hall.probe()
        own_postgres.stop()
        try:
            assert_unavailable(hall, "A1")
        finally:
            own_postgres.start()
        hall.probe()
        assert hall.run("A1") == {}
        assert hall.statuses() == {"A1": "free"}


@pytest.mark.parametrize(
    ("kind", "noticed_by"), [(Hall, "the probe"), (Hall, "a batch"), (Deciding, "a batch")]
)
def test_a_read_only_server_is_an_outage_and_ends_with_it(
    own_postgres: Postgres, kind: type[Hall], noticed_by: str
) -> None:
    with own_hall(own_postgres, kind) as hall:
        hall.add("A1")
        name = hall.engine.url.database
        own_postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        hall.engine.dispose()
        with pytest.raises(Unavailable, match="read-only"):
            hall.probe() if noticed_by == "the probe" else hall.run("A1")
        own_postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        assert hall.run("A1") == {}  # on a new connection: those that were open stay read-only
        hall.probe()


@KINDS
def test_a_frozen_backend_is_given_up(own_postgres: Postgres, kind: type[Hall]) -> None:
    with own_hall(own_postgres, kind, timeout_seconds=2) as hall:
        hall.add("A1")
        with psycopg.connect(own_postgres.url("postgres").replace("+psycopg", "")) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s", [hall.engine.url.database]
            ).fetchall()
        assert rows
        for (pid,) in rows:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable):
                hall.run("A1")
            assert hall.run("A1") == {}
        finally:
            for (pid,) in rows:
                os.kill(pid, signal.SIGCONT)


def test_every_wait_has_a_bound_though_the_engine_has_none(engine: sa.Engine) -> None:
    hall = Hall(engine, timeout_seconds=1)
    hall.add("A1")
    hall.handle = lambda connection, _ids: connection.exec_driver_sql("SELECT pg_sleep(60)")
    with pytest.raises(Unavailable, match="statement timeout"):
        hall.run("A1")
    hall.handle = lambda connection, _ids: connection.exec_driver_sql("LOCK TABLE seats")
    with engine.begin() as other:
        other.execute(sa.select(hall.seats))
        with pytest.raises(Unavailable, match="timeout"):
            hall.run("A1")


@pytest.mark.parametrize("ended_by", ["the server", "the watchdog"])
def test_a_handler_that_is_slow_elsewhere_fails_its_task(
    records_url: str, engine: sa.Engine, ended_by: str
) -> None:
    an_hour = "-c idle_in_transaction_session_timeout=3600000"
    options = an_hour if ended_by == "the watchdog" else ""
    with made(records_url, connect_args={"options": options}) as own:
        hall = Hall(own, timeout_seconds=0.2)
        hall.add("A1")

        def send_a_mail(connection: sa.Connection, ids: Sequence[Any]) -> None:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            alive = f"SELECT FROM pg_stat_activity WHERE pid = {pid}"
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
                ended = lambda: other.exec_driver_sql(alive).first() is None  # noqa: E731
                wait_until(ended, "the session to be ended")
            hall.release(connection, ids)

        hall.handle = send_a_mail
        with pytest.raises(TimeoutError, match="timeout_seconds"):
            hall.run("A1")
        assert hall.statuses() == {"A1": "held"}


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ("", ["250ms", "10s"]),
        ("-c lock_timeout=1234 -c statement_timeout=2345", ["1234ms", "2345ms"]),
    ],
)
def test_waits_are_bounded_unless_the_engine_has_its_own_bounds(
    records_url: str, options: str, bounds: list[str]
) -> None:
    with made(records_url, connect_args={"options": options}) as engine:
        hall = Hall(engine)
        hall.add("A1")
        seen: list[Any] = []

        def look(connection: sa.Connection, ids: Sequence[Any]) -> None:
            for name in ("lock_timeout", "statement_timeout"):
                seen.append(connection.exec_driver_sql(f"SHOW {name}").scalar_one())  # noqa: PERF401
            hall.release(connection, ids)

        hall.handle = look
        assert hall.run("A1") == {}
        assert seen == bounds


def test_a_conflict_is_tried_again_and_an_outage_if_it_goes_on(hall: Hall) -> None:
    hall.add("A1")
    raise_conflict = "DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$"

    def lose_once(connection: sa.Connection, ids: Sequence[Any]) -> None:
        if len(hall.handled) == 1:
            connection.exec_driver_sql(raise_conflict)
        hall.release(connection, ids)

    hall.handle = lambda connection, _ids: connection.exec_driver_sql(raise_conflict)
    with pytest.raises(Unavailable):
        hall.run("A1")
    assert len(hall.handled) == CONFLICT_RETRIES + 1
    hall.handled.clear()
    hall.handle = lose_once
    assert hall.run("A1") == {}
    assert len(hall.handled) == 2


def test_a_statement_that_is_wrong_is_no_outage(hall: Hall) -> None:
    hall.add("A1")
    hall.handle = lambda connection, _ids: connection.exec_driver_sql("SELECT * FROM nowhere")
    with pytest.raises(sa.exc.DBAPIError):
        hall.run("A1")


def test_the_probe_asks_for_the_rights_of_a_batch(records_url: str) -> None:
    with made(records_url) as owners:
        hall = Hall(owners)
        reader = f"reader_{uuid4().hex}"
        with owners.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE ROLE {reader} LOGIN; GRANT SELECT ON seats TO {reader}"
            )
        hall.probe()
        url = sa.make_url(records_url).set(username=reader)
        with (
            made(url.render_as_string()) as engine,
            pytest.raises(sa.exc.DBAPIError, match="seats"),
        ):
            Hall(engine).probe()
        with owners.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {reader}; DROP ROLE {reader}")


def test_the_probe_fails_without_the_table(engine: sa.Engine) -> None:
    hall = Hall(engine)
    hall.seats.drop(engine)
    with pytest.raises(sa.exc.DBAPIError):
        hall.probe()


def test_an_empty_pool_is_an_outage(records_url: str) -> None:
    with made(records_url, pool_size=1, max_overflow=0, pool_timeout=0.05) as engine:
        hall = Hall(engine)
        with engine.connect():
            assert_unavailable(hall, "A1")


# -- plans ---------------------------------------------------------------------------------

ROWS = int(os.environ.get("RECORDS", "20000"))


@pytest.fixture(scope="module")
def cold_and_analysed(postgres: Postgres) -> Iterator[tuple[Hall, Hall]]:
    """Two halls with the same seats: one's database was never analysed, the other's was."""
    with ExitStack() as stack:
        halls = []
        for _ in ("cold", "analysed"):
            url = stack.enter_context(empty_database(postgres))
            halls.append(Hall(stack.enter_context(made(url)), id_type=sa.Uuid))
            fill(halls[-1])
        with halls[1].engine.connect() as connection:
            autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
            autocommit.exec_driver_sql("ANALYZE")
        yield halls[0], halls[1]


def fill(hall: Hall) -> None:
    """Many seats, a quarter of them sold, one due each second until half an hour from now."""
    start = time.time() + 1800 - ROWS
    with hall.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE seats SET (autovacuum_enabled = off)")
        rows = [
            {
                "id": uuid4(),
                "status": "held" if number % 4 else "sold",
                "held_until": datetime.fromtimestamp(start + number, UTC),
            }
            for number in range(ROWS)
        ]
        connection.execute(hall.seats.insert(), rows)


def assert_alike(halls: tuple[Hall, Hall], use: Callable[[Hall], object], rows: int) -> None:
    """It reads no table from end to end, and about as much on both databases: a few pages for each row."""
    costs = []
    for hall in halls:
        with watched(hall.engine) as reads:
            use(hall)
        own = [read for read in reads if "seats" in read.statement]
        assert own
        # A bitmap of the rows with these ids is as good as an index scan, and told from others by its cost;
        # the handler's own UPDATE has its ids as constants.
        found = [read for read in own if read.faults and not read.statement.startswith("UPDATE")]
        assert [read for read in found if not read.faults[0].startswith("Bitmap Heap Scan")] == []
        costs.append(sum(read.cost for read in own))
    cold, analysed = costs
    assert cold <= 3 * analysed + 20
    assert cold <= 20 * len(own) + 30 * rows


@pytest.mark.parametrize("size", quick_first([500, 1, 20]))
def test_a_batch_needs_no_statistics(cold_and_analysed: tuple[Hall, Hall], size: int) -> None:
    batches = {id(hall): [due.id for due in hall.sweep()][:size] for hall in cold_and_analysed}
    assert_alike(cold_and_analysed, lambda hall: hall.run(*batches[id(hall)]), size)
    for hall in cold_and_analysed:
        assert not {*batches[id(hall)]} & {due.id for due in hall.sweep()}


def test_the_sweep_needs_no_statistics(cold_and_analysed: tuple[Hall, Hall]) -> None:
    def use(hall: Hall) -> None:
        assert hall.flow.sweep is not None
        for after, before in ((None, 0.0), (-1.0, 60.0), (-100.0, 900.0)):
            pages = hall.flow.sweep(after, before)
            assert [len(page) for page, _ in zip(pages, range(3), strict=False)]

    assert_alike(cold_and_analysed, use, 9 * 500)


def test_the_sweep_names_what_is_pending_as_the_index_does(hall: Hall) -> None:
    """With a parameter in its place, the plan of a prepared statement could not use the index."""
    with watched(hall.engine) as reads:
        hall.sweep()
    assert [read for read in reads if "status = 'held'" in read.statement]
