"""A table of seats, and its records."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid4

import sqlalchemy as sa

from devtools.postgres import Postgres
from worker import DelayQueue, Due, Outcome, Task, connect
from worker.records import Records

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
        return {**(self.flow.handler([Task(each) for each in ids]) or {})}

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


class Seat(sa.types.TypeDecorator[str]):
    """A UUID that the application has as text."""

    impl = sa.Uuid
    cache_ok = True

    def load_dialect_impl(self, _dialect: Any) -> sa.types.TypeEngine[Any]:
        return sa.Uuid(as_uuid=False)


class Ticket(sa.types.TypeDecorator[UUID]):
    """A UUID as 32 digits."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: UUID | None, _dialect: Any) -> str | None:
        return None if value is None else value.hex

    def process_result_value(self, value: str | None, _dialect: Any) -> UUID | None:
        return None if value is None else UUID(value)


ONE, TWO = UUID(int=1), UUID(int=2)

TYPES: dict[str, tuple[Any, list[Any]]] = {
    "text": (sa.Text(), ["b", "ä 'x\",{}\\"]),
    "varchar": (sa.String(10), ["b", "ten letter"]),
    "integer": (sa.Integer(), [7, -8]),
    "bigint": (sa.BigInteger(), [7, 2**62]),
    "uuid": (sa.Uuid(), [ONE, TWO]),
    "uuid as text": (sa.Uuid(as_uuid=False), [str(ONE), str(TWO)]),
    "an application's type": (Seat(), [str(ONE), str(TWO)]),
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
