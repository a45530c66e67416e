"""A table of seats, and its records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid4

import sqlalchemy as sa

from devtools.postgres import Postgres
from worker import DelayQueue, Due, NoOp, Outcome, Task, connect
from worker.records import Records
from worker.runtime.isolation import handle

#: Nobody answers there.
NOWHERE = "redis://127.0.0.1:1"


def queue_of(url: str = NOWHERE) -> DelayQueue:
    return DelayQueue(connect(url), "seat-holds")


class Hall:
    """A table of seats and its records; ``handled`` are the batches that the handler got."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        id_type: Any = sa.Text,
        status_type: Any = sa.Text,
        queue: DelayQueue | None = None,
        **options: Any,
    ) -> None:
        self.engine = engine
        self.seats = sa.Table(
            "seats",
            sa.MetaData(),
            sa.Column("id", id_type, primary_key=True, autoincrement=False),
            sa.Column("status", status_type, nullable=False),
            sa.Column("held_until", sa.TIMESTAMP(timezone=True)),
        )
        self.handled: list[list[Any]] = []
        self.handle: Callable[[sa.Connection, Sequence[Any]], object] = self.release
        how = {} if "decide" in options else {"handle": self._handle}
        settings = {"pending": self.seats.c.status == "held", **how, **options}
        self.records = Records(
            engine,
            id=self.seats.c.id,
            due=self.seats.c.held_until,
            queue=queue or queue_of(),
            **settings,
        )
        self.records.index()
        self.seats.metadata.create_all(engine)
        self.flow = self.records.flow()

    def _handle(self, connection: sa.Connection, ids: Sequence[Any]) -> None:
        self.handled.append([*ids])
        self.handle(connection, ids)

    def release(self, connection: sa.Connection, ids: Sequence[Any]) -> None:
        chosen = self.seats.c.id.in_(ids)
        connection.execute(self.seats.update().where(chosen).values(status="free"))

    def add(self, *ids: Any, seconds: float = -1, status: str = "held") -> None:
        """Seats that are held for so many seconds from now."""
        row = self.seats.insert().values(held_until=self.records.after(seconds))
        with self.engine.begin() as connection:
            connection.execute(row, [{"id": each, "status": status} for each in ids])

    def run(self, *ids: str) -> dict[str, Outcome]:
        """The outcomes of those that are not done."""
        outcomes = self.flow.handler([Task(each) for each in ids]) or {}
        return {each: made for each, made in outcomes.items() if not isinstance(made, NoOp)}

    def sweep(self, after: float | None = None, before: float = 0.0) -> list[Due]:
        assert self.flow.sweep is not None
        return [due for page in self.flow.sweep(after, before) for due in page]

    def probe(self) -> None:
        assert self.flow.probe is not None
        self.flow.probe()

    def statuses(self) -> dict[Any, str]:
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(self.seats.c.id, self.seats.c.status))
            return {row.id: row.status for row in rows}


class Deciding(Hall):
    """Seats that one statement frees; ``batches`` are what it was given."""

    def __init__(self, engine: sa.Engine, **options: Any) -> None:
        super().__init__(engine, decide=self._decide, **options)
        self.batches: list[dict[Any, Task]] = []
        self.decide: Any = self.free

    def _decide(self, connection: sa.Connection, tasks: Mapping[Any, Task]) -> Any:
        self.batches.append({**tasks})
        return self.decide(connection, tasks)

    def free(self, connection: sa.Connection, tasks: Mapping[Any, Task]) -> dict[Any, float]:
        seat, now = self.seats.c, self.records.after(0)
        chosen = sa.and_(seat.id.in_([*tasks]), seat.status == "held")
        free = self.seats.update().values(status="free")
        due = sa.select(seat.id).where(chosen, seat.held_until <= now).order_by(seat.id)
        locked = due.with_for_update(skip_locked=True).cte("due")
        freed = free.where(seat.id == locked.c.id).returning(seat.id).cte("freed")
        ms = 1000 * sa.extract("epoch", seat.held_until - now)
        others = sa.select(freed.c.id)
        left = sa.select(seat.id, ms.label("ms")).where(chosen, seat.id.not_in(others))
        return {row.id: row.ms for row in connection.execute(left)}

    def outcomes(self, *tasks: Task) -> dict[str, str]:
        """What a worker makes of a batch: the errors of the tasks that failed, by their ids."""
        [results] = handle(self.flow, tasks, lambda _: True)
        return {task.id: str(error) for task, error in results.failed}


@contextmanager
def made(url: str, **options: Any) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url, **options)
    yield engine
    engine.dispose()


H = TypeVar("H", bound=Hall)


@contextmanager
def own_hall(server: Postgres, kind: type[H], **options: Any) -> Iterator[H]:
    """A hall on a server that the test may break."""
    name = f"hall_{uuid4().hex}"
    server.execute(f"CREATE DATABASE {name}")
    with made(f"{server.url(name)}?connect_timeout=30") as engine:
        yield kind(engine, **options)


# -- ids and engines of every kind ---------------------------------------------------------


ONE, TWO = UUID(int=1), UUID(int=2)

TYPES: dict[str, tuple[Any, list[Any]]] = {
    "text": (sa.Text(), ["b", "ä 'x\",{}\\"]),
    "varchar": (sa.String(10), ["b", "ten letter"]),
    "integer": (sa.Integer(), [7, -8]),
    "bigint": (sa.BigInteger(), [7, 2**62]),
    "uuid": (sa.Uuid(), [ONE, TWO]),
    "uuid as text": (sa.Uuid(as_uuid=False), [str(ONE), str(TWO)]),
}


def own_begin(engine: sa.Engine) -> sa.Engine:
    """Sets what the isolation level is to be whenever a transaction begins, as the orders' engine does."""

    def do_begin(connection: Any) -> None:
        connection.driver_connection.autocommit = False

    engine.dialect.do_begin = do_begin  # type: ignore[method-assign, assignment]
    return engine


ENGINES: dict[str, Callable[[str], sa.Engine]] = {
    "autocommit": lambda url: sa.create_engine(url, isolation_level="AUTOCOMMIT"),
    "autocommit option": lambda url: sa.create_engine(url).execution_options(
        isolation_level="AUTOCOMMIT"
    ),
    "serializable": lambda url: sa.create_engine(url, isolation_level="SERIALIZABLE"),
    "one connection": lambda url: sa.create_engine(url, pool_size=1, max_overflow=0),
    "no pool": lambda url: sa.create_engine(url, poolclass=sa.NullPool),
    "own begin": lambda url: own_begin(sa.create_engine(url)),
    "plain": sa.create_engine,
}
