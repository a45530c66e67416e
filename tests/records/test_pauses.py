"""Pauses in a table: from the command line, and in the doctor's words."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis
import sqlalchemy as sa

from devtools.processes import free_port, wait_until
from devtools.valkey import Valkey
from tests.kit.hall import Hall, made
from tests.kit.workers import running
from worker import DelayQueue, Flow, Unavailable, Worker
from worker.cli import main
from worker.doctor import examine
from worker.records import TablePauses, pauses_table

FLOWS = f"{__name__}:flows"
FLOW: list[Flow] = []
Command = Callable[..., str]


def flows() -> list[Flow]:
    return FLOW


@pytest.fixture
def table() -> sa.Table:
    return pauses_table(sa.MetaData())


@pytest.fixture
def hall(records_url: str, redis_client: redis.Redis, table: sa.Table) -> Iterator[Hall]:
    """Seats whose flow keeps its pauses beside them."""
    with made(records_url) as engine:
        table.create(engine)
        hall = Hall(engine, queue=DelayQueue(redis_client, "seats"), pauses=table)
        FLOW[:] = [hall.flow]
        yield hall


@pytest.fixture
def command(valkey: Valkey, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process; returns what it printed."""

    def command(*arguments: str, url: str = valkey.url, status: int = 0) -> str:
        assert main([*arguments, "--redis-url", url, "--flows", FLOWS]) == status
        captured = capsys.readouterr()
        return captured.out + captured.err

    return command


@pytest.mark.parametrize("style", ["ISO", "German"])
def test_a_table_keeps_the_pause_of_each_queue(hall: Hall, table: sa.Table, style: str) -> None:
    sa.event.listen(
        hall.engine, "connect", lambda driver, _: driver.execute(f"SET datestyle TO {style}")
    )
    hall.engine.dispose()
    kept, other = (TablePauses(hall.engine, table, name) for name in ("a", "b"))
    kept.begin("once", "anna")
    kept.begin("twice", "bert")
    found = kept.find()
    assert found is not None
    assert (found.reason, found.by) == ("twice", "bert")
    assert found.at is not None
    assert abs(datetime.now(UTC) - found.at) < timedelta(minutes=1)
    assert other.find() is None
    kept.end()
    kept.end()
    assert kept.find() is None


def test_a_pause_is_begun_and_ended_without_redis(hall: Hall, command: Command) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    assert "is paused" in command("pause", "--reason", "why", "--by", "anna", url=nowhere)
    assert hall.flow.pauses is not None
    assert str(hall.flow.pauses.find()).endswith("UTC: why")
    assert "is running" in command("resume", url=nowhere)
    assert hall.flow.pauses.find() is None


def test_who_paused_and_why_is_shown(hall: Hall, command: Command) -> None:
    hall.add("A1", seconds=-60)
    command("pause", "--reason", "a restore", "--by", "anna")
    queue = hall.records.queue
    queue.schedule("A1", delay_ms=-60_000)
    assert "paused by anna since" in command("stats")
    found = {each.check: each for each in examine(queue._redis, [hall.flow])}
    assert ": a restore" in found["queue.pause"].summary
    assert "start more" not in found["queue.backlog"].advice
    assert "a restore" in found["queue.backlog"].advice
    queue.destroy()
    again = {each.check: each for each in examine(queue._redis, [hall.flow])}
    assert ": a restore" in again["queue.pause"].summary, "Redis has lost it"
    away = redis.Redis(port=free_port())
    last = {each.check: each for each in examine(away, [hall.flow])}
    assert ": a restore" in last["queue.pause"].summary


def test_what_else_holds_tasks_up_is_shown(command: Command) -> None:
    FLOW[:] = [Flow(name="held", handler=lambda _: None, held=lambda: "frozen: why")]
    assert "held (frozen: why)" in command("stats")

    def fails() -> str:
        raise Unavailable("no answer")

    FLOW[:] = [Flow(name="held", handler=lambda _: None, held=fails)]
    assert "frozen" not in command("stats"), "the counts are shown all the same"


def test_a_pause_in_redis_only_warns(command: Command) -> None:
    FLOW[:] = [Flow(name="swept", handler=lambda _: None, sweep=lambda *_: [])]
    assert "is in Redis only" in command("pause")
    FLOW[:] = [Flow(name="plain", handler=lambda _: None)]
    assert command("pause", "--reason", "why").startswith("plain is paused\n")


def test_a_worker_takes_up_a_queue_soon_after_its_pause(hall: Hall, valkey: Valkey) -> None:
    """Redis has forgotten everything: only the table tells, and then tells no more."""
    queue: DelayQueue = hall.records.queue
    hall.add("A1")
    assert hall.flow.pauses is not None
    hall.flow.pauses.begin("why", "anna")
    queue.schedule("A1", delay_ms=0)
    with running(Worker([hall.flow], valkey.url)):
        wait_until(queue.workers, "the worker to be there")
        assert queue.stats().due == 1
        hall.flow.pauses.end()
        wait_until(lambda: hall.statuses() == {"A1": "free"}, "the seat to be released")
