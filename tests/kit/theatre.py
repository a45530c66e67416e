"""examples/seat_reservation.py on a database of its own, which notes whenever a seat becomes free."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import sqlalchemy as sa
from flask.testing import FlaskClient

from devtools import processes
from devtools.processes import ROOT, Process, wait_until
from examples import seat_reservation
from examples.seat_reservation import seats
from worker import DelayQueue, Due, connect

EXAMPLE = ROOT / "examples" / "seat_reservation.py"

#: By triggers, so that it is the example itself that is under test.
NOTE_FREED = [
    "CREATE TABLE freed (id text, late_ms double precision)",
    """
    CREATE FUNCTION note_freed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO freed
        VALUES (NEW.id, extract(epoch FROM statement_timestamp() - NEW.held_until) * 1000);
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER note_freed AFTER UPDATE ON seats FOR EACH ROW
    WHEN (OLD.status = 'held' AND NEW.status = 'free') EXECUTE FUNCTION note_freed()
    """,
]


class Theatre:
    """The example with its table, wired to these servers, and real workers on it."""

    def __init__(self, database_url: str, redis_url: str, folder: Path) -> None:
        self._env = {"DATABASE_URL": database_url, "REDIS_URL": redis_url}
        self._folder = folder
        self._workers: list[Process] = []
        self.engine = sa.create_engine(database_url)
        seat_reservation.metadata.create_all(self.engine)
        with patch.dict(os.environ, self._env):
            self.holds = seat_reservation.holds(self.engine)
        self.queue = DelayQueue(connect(redis_url, timeout_seconds=10), "seat-holds")
        with self.engine.begin() as connection:
            for statement in NOTE_FREED:
                connection.exec_driver_sql(statement)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self.engine.dispose()

    def start_worker(self) -> Process:
        """Start a worker on the example, and wait until it is at work."""
        log = self._folder / f"worker-{len(self._workers)}.log"
        worker = processes.python(
            ["worker", "run", "examples.seat_reservation:flows"], self._env, log
        )
        self._workers.append(worker)
        wait_until(lambda: '"available"' in log.read_text(), "the worker to be at work")
        return worker

    def hold_many(
        self, count: int, first_seconds: float, last_seconds: float, *, scheduled: bool = True
    ) -> list[str]:
        """Hold new seats for Ada in one transaction, their deadlines spread evenly between two times from now."""
        step = (last_seconds - first_seconds) / max(1, count - 1)
        ids = [f"seat-{number:04}" for number in range(count)]
        deadline = self.holds.after(sa.bindparam("seconds", type_=sa.Double))
        row = seats.insert().values(
            id=sa.bindparam("seat"), status="held", held_by="ada", held_until=deadline
        )
        with self.engine.begin() as connection:
            connection.execute(
                row,
                [{"seat": seat, "seconds": first_seconds + n * step} for n, seat in enumerate(ids)],
            )
        if scheduled:
            self.queue.schedule_many(
                Due(seat, 1000 * (first_seconds + n * step)) for n, seat in enumerate(ids)
            )
        return ids

    def door(self, hold_seconds: float = 600) -> FlaskClient:
        """The example's routes."""
        with patch.dict(os.environ, self._env):
            return seat_reservation.create_app(self.engine, hold_seconds).test_client()

    def statuses(self) -> dict[str, str]:
        with self.engine.connect() as connection:
            query = sa.select(seats.c.id, seats.c.status)
            return {row.id: row.status for row in connection.execute(query)}

    def freed(self) -> list[tuple[str, float]]:
        """Which seat became free how many ms after its deadline, each time."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT id, late_ms FROM freed")).all()
        return [(row.id, row.late_ms) for row in rows]

    def wait_until_all_are_free(self) -> None:
        wait_until(lambda: {*self.statuses().values()} == {"free"}, "every seat to be free")

    def assert_each_was_freed_once(self, ids: Sequence[str], *, latest_ms: float) -> None:
        """None early, none twice, none later than that."""
        freed = self.freed()
        assert sorted(seat for seat, _ in freed) == sorted(ids)
        late = [late_ms for _, late_ms in freed]
        assert min(late) >= 0
        assert max(late) <= latest_ms


@contextmanager
def theatre(database_url: str, redis_url: str, folder: Path) -> Iterator[Theatre]:
    made = Theatre(database_url, redis_url, folder)
    try:
        yield made
    finally:
        made.close()
