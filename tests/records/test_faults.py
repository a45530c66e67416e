"""The seats of examples/seat_reservation.py, which have no code of their own for any of this."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from devtools.postgres import Postgres
from devtools.processes import wait_until
from devtools.valkey import Valkey
from tests.kit.clock import bound
from tests.kit.pauses import last
from tests.kit.theatre import Theatre, theatre
from tests.kit.workers import frozen

SEATS = 1000
LATEST_MS = 3000


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A Valkey to break."""
    server = Valkey(tmp_path / "valkey", "--save", "").start()
    yield server
    server.stop()


@pytest.fixture
def house(records_url: str, valkey: Valkey, tmp_path: Path) -> Iterator[Theatre]:
    with theatre(records_url, valkey.url, tmp_path) as house:
        yield house


def assert_nothing_is_left(house: Theatre) -> None:
    def is_empty() -> bool:
        stats = house.queue.stats()
        return stats.scheduled == stats.leased == stats.dead == 0

    wait_until(is_empty, "every task to be settled", ignoring=redis.RedisError)


@pytest.mark.slow  # orders are records, too: see test_redis_fails.py
def test_after_a_flush_every_seat_is_freed_on_time(house: Theatre, valkey: Valkey) -> None:
    house.start_worker()
    ids = house.hold_many(SEATS, 1, 2.5)
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()

    house.wait_until_all_are_free()

    house.assert_each_was_freed_once(ids, latest_ms=bound(LATEST_MS))
    assert_nothing_is_left(house)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_without_redis_two_workers_free_every_seat_on_time(
    house: Theatre, valkey: Valkey, fault: signal.Signals
) -> None:
    house.start_worker()
    house.start_worker()
    ids = house.hold_many(SEATS, 1, 2.5)
    assert valkey.process is not None
    valkey.process.signal(fault)

    house.wait_until_all_are_free()

    house.assert_each_was_freed_once(ids, latest_ms=bound(LATEST_MS))


@pytest.mark.slow
def test_two_workers_free_each_seat_once(house: Theatre) -> None:
    house.start_worker()
    house.start_worker()
    ids = house.hold_many(SEATS, 0, 1)

    house.wait_until_all_are_free()

    house.assert_each_was_freed_once(ids, latest_ms=bound(LATEST_MS))
    assert_nothing_is_left(house)


@pytest.mark.slow
def test_a_worker_that_dies_in_a_batch_changes_nothing(house: Theatre) -> None:
    worker = house.start_worker()
    with frozen(worker):
        ids = house.hold_many(5, 0, 0)
        block = house.engine.connect()
        block.exec_driver_sql("LOCK TABLE freed")  # it frees seats, and waits before it commits
    wait_until(lambda: house.queue.stats().leased == 5, "the claim")
    worker.kill()
    block.rollback()
    block.close()
    assert {*house.statuses().values()} == {"held"}
    house.start_worker()
    house.wait_until_all_are_free()
    house.assert_each_was_freed_once(ids, latest_ms=float("inf"))


@pytest.mark.slow
def test_a_database_that_is_down_adds_no_dead_letter(
    own_postgres: Postgres, valkey: Valkey, tmp_path: Path
) -> None:
    own_postgres.execute("CREATE DATABASE house")
    url = f"{own_postgres.url('house')}?connect_timeout=3"
    with theatre(url, valkey.url, tmp_path) as house:
        worker = house.start_worker()
        with frozen(worker):
            ids = house.hold_many(200, 0, 0)
            own_postgres.stop()
        wait_until(lambda: '"unavailable"' in worker.log.read_text(), "the worker to notice")
        last(1)
        stats = house.queue.stats()
        assert (stats.dead, stats.leased, stats.scheduled) == (0, 0, 200)

        own_postgres.start()

        house.engine.dispose()
        house.wait_until_all_are_free()
        house.assert_each_was_freed_once(ids, latest_ms=float("inf"))
        assert_nothing_is_left(house)
        assert "task failed" not in worker.log.read_text()
