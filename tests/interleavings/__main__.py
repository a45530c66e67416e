"""Search random scenarios for as long as one likes, or try that planted mistakes are found.

python -m tests.interleavings --minutes 60 [--seed 1]
python -m tests.interleavings --self
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, count, takewhile
from pathlib import Path

import redis
from structlog.testing import capture_logs

from devtools.postgres import Postgres
from devtools.valkey import Valkey
from tests.conftest import Shop, empty_database, opened, upgrade
from tests.interleavings.explorer import Violation, explore
from tests.interleavings.lanes import ConsumerWorld, LaneWorld, RecurringWorld
from tests.interleavings.mistakes import (
    IN_PYTHON,
    IN_SQL,
    IN_WEBHOOKS,
    MISTAKES,
    Mistake,
    PythonMistake,
    SqlMistake,
    planted,
    planted_in_python,
    planted_in_sql,
)
from tests.interleavings.queue_world import QueueWorld
from tests.interleavings.scenarios import (
    CONSUMERS,
    FRAME,
    LARGE,
    RECURRING,
    SCENARIOS,
    SENDINGS,
    TRANSITIONS,
    TURNS,
)
from tests.interleavings.test_statements import search, with_a_provider
from tests.interleavings.turns_world import TurnsWorld
from tests.interleavings.webhook_world import webhook_world
from worker import connect

#: Of one random scenario: about a minute.
MOST_STEPS = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Search all orders of the queue's steps.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--self", action="store_true", help="plant mistakes instead")
    options = parser.parse_args()
    server = Valkey(Path(tempfile.mkdtemp()))
    server.start()
    try:
        with connect(server.url, timeout_seconds=5) as client:
            if options.self:
                return _plant(client)
            return _search(client, options.minutes, options.seed)
    finally:
        server.stop()


def _search(client: redis.Redis, minutes: float, seed: int) -> int:
    """Search the scenarios of the tests, then the frame with three to five random transitions, again and again."""
    chance, ends = random.Random(seed), time.monotonic() + 60 * minutes
    drawn = (
        ", ".join((FRAME, *chance.choices(TRANSITIONS, k=chance.randint(3, 5)))) for _ in count()
    )
    states = steps = complete = number = 0
    for number, line in enumerate(
        chain(SCENARIOS, LARGE, takewhile(lambda _: time.monotonic() < ends, drawn)), 1
    ):
        try:
            found = explore(QueueWorld(client), line, MOST_STEPS)
        except Violation as violation:
            print(f"seed {seed}, scenario {number}: {line}\n{violation}")
            return 1
        states, steps = states + found.states, steps + found.steps
        complete += found.complete
        print(f"{'complete' if found.complete else 'sampled '} {found.states:7,} states  {line}")
    print(
        f"{number} scenarios, {complete} complete, {states:,} states, {steps:,} steps, seed {seed}"
    )
    return 0


def _plant(client: redis.Redis) -> int:
    with capture_logs():
        planned: list[Mistake | PythonMistake] = [*MISTAKES, *IN_PYTHON]
        found = [(each.describe(), _first_trace(client, each)) for each in planned]
        for shop in _shops():
            found += [(each.describe(), _meeting(shop, each)) for each in IN_SQL]
            found += [(each.describe(), _first_sending(shop, each)) for each in IN_WEBHOOKS]
    for described, trace in found:
        print(f"{'missed' if trace is None else 'caught'}  {described}\n        {trace}")
    missed = sum(trace is None for _, trace in found)
    print(f"{len(found) - missed} of {len(found)} mistakes were found")
    return 1 if missed else 0


def _first_trace(client: redis.Redis, mistake: Mistake | PythonMistake) -> str | None:
    """The order of moves that finds a mistake, in the first scenario that does."""
    kinds: list[tuple[Callable[[redis.Redis], QueueWorld | LaneWorld | TurnsWorld], list[str]]]
    kinds = [(QueueWorld, [*SCENARIOS, *LARGE])]
    if isinstance(mistake, PythonMistake) and mistake.is_in("worker.runtime"):
        kinds = [(ConsumerWorld, CONSUMERS), (RecurringWorld, RECURRING)]
    if isinstance(mistake, PythonMistake) and mistake.is_in("orders.webhooks"):
        kinds = [(lambda _: TurnsWorld(2), TURNS), (lambda _: TurnsWorld(4), TURNS)]
    for kind, line in ((kind, line) for kind, lines in kinds for line in lines):
        world = kind(client)
        with ExitStack() as stack:
            if isinstance(mistake, PythonMistake):
                stack.enter_context(planted_in_python(mistake))
            elif isinstance(world, QueueWorld):
                stack.enter_context(planted(world, mistake))
            try:
                explore(world, line)
            except Violation as violation:
                return str(violation).partition("\n")[0]
    return None


def _shops() -> Iterator[Shop]:
    """A shop on a PostgreSQL of its own."""
    postgres = Postgres(fsync=False)
    postgres.start()
    try:
        with empty_database(postgres) as url:
            upgrade(url)
            with opened(url) as shop:
                with_a_provider(shop)
                yield shop
    finally:
        postgres.remove()


def _first_sending(shop: Shop, mistake: SqlMistake) -> str | None:
    """The order of statements that finds a mistake in those of webhooks."""
    for line in SENDINGS:
        with webhook_world(shop) as world, planted_in_sql(shop.engine, mistake):
            try:
                explore(world, line)
            except Violation as violation:
                return " ".join(str(violation).split())
    return None


def _meeting(shop: Shop, mistake: SqlMistake) -> str | None:
    """Which operations find a mistake."""
    begin, gate, *names = mistake.where
    search(shop, begin, gate, [names])
    trace = None
    with planted_in_sql(shop.engine, mistake) as changed:
        try:
            search(shop, begin, gate, [names])
        except Exception as error:  # noqa: BLE001  whatever it is, it was found
            trace = " ".join(str(error).split())[:150]
    assert changed, f"no statement has {mistake.right!r}"
    return trace


if __name__ == "__main__":
    sys.exit(main())
