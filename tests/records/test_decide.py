"""Records whose one statement decides: nothing runs before it, and it is committed by itself."""

import re
import tempfile
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from tests.kit.hall import ENGINES, TYPES, Deciding, made, queue_of
from worker import DeadLetter, Failed, NotDue, Outcome, Retry, Task, Unavailable
from worker.records import CONFLICT_RETRIES, Records
from worker.runtime.isolation import handle


@pytest.fixture
def hall(engine: sa.Engine) -> Deciding:
    return Deciding(engine)


# -- one batch -----------------------------------------------------------------------------


def test_one_statement_handles_a_batch_and_tells_what_it_left(hall: Deciding) -> None:
    hall.add("due", "also due")
    hall.add("sold", status="sold")
    hall.add("later", seconds=60)
    outcomes = hall.run("sold", "later", "due", "absent", "also due", "a\0b")
    assert outcomes.keys() == {"later", "a\0b"}
    assert isinstance(outcomes["a\0b"], DeadLetter)
    assert isinstance(retry := outcomes["later"], Retry)
    assert isinstance(retry, NotDue)
    assert 55_000 < retry.delay_ms <= 60_000
    assert retry.delay_ms == round(retry.delay_ms)
    assert hall.statuses() == {"due": "free", "also due": "free", "sold": "sold", "later": "held"}
    assert hall.run("due", "also due") == {}


@pytest.mark.parametrize("kind", TYPES)
def test_the_statement_gets_ids_of_any_type_with_tasks(engine: sa.Engine, kind: str) -> None:
    id_type, ids = TYPES[kind]
    hall = Deciding(engine, id_type=id_type)
    hall.add(*ids, seconds=60)
    tasks = [Task(str(each), b"paid?", attempt=7) for each in ids]
    outcomes = hall.flow.handler(tasks) or {}
    assert hall.batches == [dict(zip(ids, tasks, strict=True))]
    assert [type(each) for each in hall.batches[0]] == [type(each) for each in ids]
    assert outcomes.keys() == {str(each) for each in ids}


@pytest.mark.parametrize("returned", [None, {}])
def test_a_statement_may_leave_nothing(hall: Deciding, returned: object) -> None:
    hall.decide = lambda _connection, _tasks: returned
    assert hall.run("A1") == {}


def test_what_is_left_has_a_delay_or_an_outcome(hall: Deciding) -> None:
    letter = DeadLetter("it has a payload")
    left: dict[str, float | Decimal | Outcome] = {"A1": 0.2, "A2": Decimal("1.5"), "A3": letter}
    hall.decide = lambda _connection, _tasks: left
    first, second, third = hall.run("A1", "A2", "A3").values()
    assert isinstance(first, Retry)
    assert isinstance(second, Retry)
    assert (first.delay_ms, second.delay_ms, third) == (1, 2, letter)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (["A1"], "TypeError: decide returned a list, not a mapping"),
        (0, "TypeError: decide returned a int, not a mapping"),
        ({"B1": 5}, "TypeError: the handler named 'B1', which is not a task id"),
    ],
)
def test_a_wrong_return_value_fails_the_batch_once(
    hall: Deciding, returned: object, error: str
) -> None:
    hall.add("A1", "A2")

    def free(connection: sa.Connection, tasks: Mapping[Any, Task]) -> object:
        hall.free(connection, tasks)
        return returned

    hall.decide = free
    [results] = handle(hall.flow, [Task("A1"), Task("A2")], lambda _: True)
    assert [f"{type(each).__name__}: {each}" for _, each in results.failed] == [error] * 2
    assert len(hall.batches) == 1
    assert hall.statuses() == {"A1": "free", "A2": "free"}


@pytest.mark.parametrize("wrong", ["soon", None, float("inf"), float("nan"), 1e300])
def test_a_value_that_is_no_delay_fails_its_task_alone(hall: Deciding, wrong: object) -> None:
    hall.decide = lambda _connection, _tasks: {"A1": wrong, "A2": 5}
    error = f"decide returned {wrong!r}, which is neither milliseconds nor an outcome"
    assert hall.outcomes(Task("A1"), Task("A2")) == {"A1": error}


# -- its transaction -----------------------------------------------------------------------


def test_nothing_runs_beside_the_statement(hall: Deciding) -> None:
    hall.add("A1")
    hall.run("A1")
    seen: list[str] = []
    sa.event.listen(
        hall.engine, "before_cursor_execute", lambda *args: seen.append(args[2].split()[0])
    )
    hall.decide = lambda connection, _tasks: connection.execute(hall.seats.delete()) and None
    assert hall.run("A1") == {}
    assert seen == ["DELETE"]


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if kind != "no pool"])
def test_a_batch_is_one_round_trip(records_url: str, kind: str) -> None:
    hall = Deciding(ENGINES[kind](records_url))
    hall.add("A1", "A2")

    def traced(connection: sa.Connection, tasks: Mapping[Any, Task]) -> dict[Any, float]:
        driver: Any = connection.connection.driver_connection
        driver.pgconn.trace(trace.fileno())
        return hall.free(connection, tasks)

    hall.run("A1")  # what a new connection asks is asked
    with tempfile.TemporaryFile("w+b") as trace:
        hall.decide = traced
        assert hall.run("A2") == {}
        hall.engine.dispose()
        trace.seek(0)
        sent = re.findall(r"^\S+ \S+\tF\t\d+\t(\w+)", trace.read().decode(), re.MULTILINE)
    assert sent == ["Parse", "Bind", "Describe", "Execute", "Sync", "Terminate"]
    assert hall.statuses() == {"A1": "free", "A2": "free"}
    hall.engine.dispose()


def test_what_a_listener_has_begun_is_committed_before(records_url: str) -> None:
    with made(records_url) as engine:
        sa.event.listen(engine, "begin", lambda each: each.exec_driver_sql("SET LOCAL jit = off"))
        hall = Deciding(engine)
        hall.add("A1")
        hall.decide = lambda connection, tasks: hall.free(connection, tasks) or 1 / 0
        with pytest.raises(ZeroDivisionError):
            hall.run("A1")
        assert hall.statuses() == {"A1": "free"}


def test_batches_start_no_thread_each(hall: Deciding, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.run("A1")
    monkeypatch.delattr("threading.Thread.start")
    for _ in range(3):
        hall.run("A1")
    assert hall.sweep() == []


@pytest.mark.parametrize("kind", ENGINES)
def test_the_statement_is_committed_by_itself(records_url: str, kind: str) -> None:
    engine = ENGINES[kind](records_url)
    hall = Deciding(engine)
    hall.add("A1")

    def fail(connection: sa.Connection, tasks: Mapping[Any, Task]) -> None:
        hall.free(connection, tasks)
        raise ValueError("after it")

    hall.decide = fail
    with pytest.raises(ValueError, match="after it"):
        hall.run("A1")
    assert hall.statuses() == {"A1": "free"}
    hall.add("A2")
    hall.decide = hall.free
    assert hall.run("A2") == {}
    assert hall.sweep() == []
    hall.probe()
    engine.dispose()


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if "autocommit" not in kind])
def test_its_connection_is_returned_as_it_was(records_url: str, kind: str) -> None:
    engine = ENGINES[kind](records_url)
    hall = Deciding(engine)
    hall.add("A1", "A2", seconds=60)
    hall.run("A1", "A2")
    with engine.connect() as connection:
        connection.execute(hall.seats.delete())
        connection.rollback()
    assert hall.statuses() == {"A1": "held", "A2": "held"}
    engine.dispose()


# -- outages -------------------------------------------------------------------------------


def test_a_conflict_is_retried_and_an_outage_if_it_goes_on(hall: Deciding) -> None:
    hall.add("A1")
    conflict = "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"

    def lose_once(connection: sa.Connection, tasks: Mapping[Any, Task]) -> object:
        if len(hall.batches) == 1:
            connection.exec_driver_sql(conflict)
        return hall.free(connection, tasks)

    hall.decide = lambda connection, _tasks: connection.exec_driver_sql(conflict)
    with pytest.raises(Unavailable):
        hall.run("A1")
    assert len(hall.batches) == CONFLICT_RETRIES + 1
    hall.batches.clear()
    hall.decide = lose_once
    assert hall.run("A1") == {}
    assert len(hall.batches) == 2
    assert hall.statuses() == {"A1": "free"}


def test_what_the_statement_may_not_do_is_seen_by_running_it_for_no_records(hall: Deciding) -> None:
    hall.add("A1", "A2")
    tasks = [Task("A1"), Task("A2")]
    refusal = "DO $$ BEGIN RAISE insufficient_privilege; END $$"
    hall.decide = lambda connection, _tasks: connection.exec_driver_sql(refusal)
    with pytest.raises(sa.exc.DBAPIError):
        hall.probe()
    hall.decide = hall.free
    hall.probe()
    assert hall.batches == [{}, {}]
    assert hall.statuses() == {"A1": "held", "A2": "held"}
    assert hall.outcomes(*tasks) == {}


def test_a_wrong_statement_is_no_outage(hall: Deciding) -> None:
    hall.decide = lambda connection, _tasks: connection.exec_driver_sql("SELECT * FROM nowhere")
    with pytest.raises(sa.exc.DBAPIError):
        hall.run("A1")


# -- the flow ------------------------------------------------------------------------------


def test_a_probe_of_ones_own_is_asked_first(hall: Deciding) -> None:
    def probe() -> None:
        raise LookupError("run the migrations")

    hall.seats.drop(hall.engine)
    asked = hall.records.flow(probe=probe).probe
    assert asked is not None
    with pytest.raises(LookupError, match="run the migrations"):
        asked()
    own = hall.records.flow(probe=lambda: None).probe
    assert own is not None
    with pytest.raises(sa.exc.DBAPIError):
        own()


@pytest.mark.parametrize("given", [(), ("handle", "decide")])
def test_records_are_handled_or_decided(hall: Deciding, given: tuple[str, ...]) -> None:
    ways: dict[str, Any] = dict.fromkeys(given, hall.free)
    seat = hall.seats.c
    with pytest.raises(ValueError, match="either handle or decide"):
        Records(
            hall.engine,
            id=seat.id,
            due=seat.held_until,
            pending=sa.true(),
            queue=queue_of(),
            **ways,
        )


def test_what_is_left_and_wrong_fails_with_its_reason(hall: Deciding) -> None:
    hall.decide = lambda _connection, _tasks: {"A1": Failed("no such hall")}
    assert hall.outcomes(Task("A1")) == {"A1": "no such hall"}
