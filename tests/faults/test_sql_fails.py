"""An outage of the database is nobody's failure: it adds no dead letter, however long it lasts."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.processes import wait_until
from tests.faults.site import Site
from tests.servers import Postgres

#: Three failures in a row, at most 0.2 s apart, would be a dead letter.
SETTINGS = {"MAX_FAILURES": "3", "RETRY_BASE_SECONDS": "0.1", "RETRY_CAP_SECONDS": "0.2"}
RETRY_BUDGET_SECONDS = 0.4


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL that the test may stop."""
    server = Postgres()
    try:
        yield server.start()
    finally:
        server.remove()


def test_sql_down_for_ten_times_all_retries_adds_no_dead_letter(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    own_postgres.execute("CREATE DATABASE shop")
    site = Site(tmp_path, own_postgres.url("shop"), SETTINGS)
    try:
        worker = site.start_worker()
        ids = site.place(200, 1, 1)
        own_postgres.stop()
        wait_until(lambda: "unavailable" in site.log(worker), "the worker to notice")
        end = time.monotonic() + 10 * RETRY_BUDGET_SECONDS
        wait_until(lambda: time.monotonic() > end, "the outage to have lasted", seconds=30)
        stats = site.queue.stats()
        assert (stats.dead, stats.leased, stats.scheduled) == (0, 0, 200)

        own_postgres.start()
        site.wait_until_all_are_cancelled(15)

        site.assert_each_was_cancelled_once(ids)
        wait_until(lambda: not site.queue.stats().leased, "the last ack")
        site.assert_the_queue_is_empty()
        assert "task failed" not in site.log(worker)
    finally:
        site.close()
