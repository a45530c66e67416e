"""Search random scenarios for as long as one likes, or try that planted mistakes are found.

python -m tests.interleavings --minutes 60 [--seed 1]
python -m tests.interleavings --self
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import NamedTuple

import redis
from structlog.testing import capture_logs

from devtools.postgres import Postgres
from devtools.valkey import Valkey
from tests.conftest import Shop, empty_database, opened, upgrade
from tests.interleavings.conftest import PATIENT
from tests.interleavings.explorer import Violation, World, explore
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
    CONSUMER_FRAME,
    CONSUMERS,
    FRAME,
    LARGE,
    OF_CONSUMERS,
    OF_RECURRING,
    OF_SENDINGS,
    RECURRING,
    RECURRING_FRAME,
    SCENARIOS,
    SENDING_FRAME,
    SENDINGS,
    TRANSITIONS,
    TURNS,
)
from tests.interleavings.test_statements import CASES, OPERATIONS, at, search, with_a_provider
from tests.interleavings.turns_world import TurnsWorld
from tests.interleavings.webhook_world import webhook_world
from worker import connect

#: Of one random scenario: about a minute.
MOST_STEPS = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Search all orders of random steps.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--self", action="store_true", help="plant mistakes instead")
    options = parser.parse_args()
    server = Valkey(Path(tempfile.mkdtemp()))
    server.start()
    try:
        # To write logs would take longer than all the rest.
        with connect(server.url, timeout_seconds=5) as client, capture_logs():
            if options.self:
                return _plant(client)
            return _search(client, options.minutes, options.seed)
    finally:
        server.stop()


class Draw(NamedTuple):
    """A world, and what chance adds to the beginning of a scenario in it."""

    world: Callable[[redis.Redis, Shop], AbstractContextManager[World]]
    frame: str
    transitions: Sequence[str]


DRAWS = [
    Draw(lambda client, _: nullcontext(QueueWorld(client)), FRAME, TRANSITIONS),
    Draw(lambda client, _: nullcontext(ConsumerWorld(client)), CONSUMER_FRAME, OF_CONSUMERS),
    Draw(lambda client, _: nullcontext(RecurringWorld(client)), RECURRING_FRAME, OF_RECURRING),
    Draw(lambda _, shop: webhook_world(shop), SENDING_FRAME, OF_SENDINGS),
]


def _search(client: redis.Redis, minutes: float, seed: int) -> int:
    """Search frames with random transitions, and meetings of random operations, again and again."""
    chance, ends = random.Random(seed), time.monotonic() + 60 * minutes
    states = steps = complete = number = meetings = 0
    for shop in _shops():
        while time.monotonic() < ends:
            number += 1
            draw = chance.choices(DRAWS, weights=(3, 1, 1, 1))[0]
            most = 5 if draw is DRAWS[0] else 2
            line = ", ".join(
                (draw.frame, *chance.choices(draw.transitions, k=chance.randint(2, most)))
            )
            case, names = (
                chance.choice(CASES),
                chance.choices([*OPERATIONS], k=chance.randint(3, 4)),
            )
            try:
                with draw.world(client, shop) as world:
                    found = explore(world, line, MOST_STEPS)
                if at(case[1], [(*names,)]):
                    search(shop, *case, [names])
                    meetings += 1
            except AssertionError as violation:
                print(f"seed {seed}, scenario {number}: {line}\n{violation}")
                return 1
            states, steps = states + found.states, steps + found.steps
            complete += found.complete
            print(
                f"{'complete' if found.complete else 'sampled '} {found.states:7,} states  {line}"
            )
    print(
        f"{number} scenarios, {complete} complete, {states:,} states, {steps:,} steps,"
        f" {meetings} meetings, seed {seed}"
    )
    return 0


def _plant(client: redis.Redis) -> int:
    found, missed = 0, 0
    for described, trace in _planted(client):
        found, missed = found + (trace is not None), missed + (trace is None)
        print(f"{'missed' if trace is None else 'caught'}  {described}\n        {trace}")
    print(f"{found} of {found + missed} mistakes were found")
    return 1 if missed else 0


def _planted(client: redis.Redis) -> Iterator[tuple[str, str | None]]:
    """Each mistake, and what finds it."""
    mistakes: list[Mistake | PythonMistake] = [*MISTAKES, *IN_PYTHON]
    for each in mistakes:
        yield each.describe(), _first_trace(client, each)
    for shop in _shops():
        for mistake in IN_SQL:
            yield mistake.describe(), _meeting(shop, mistake)
        for mistake in IN_WEBHOOKS:
            yield mistake.describe(), _first_sending(shop, mistake)


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
            with opened(url, **PATIENT) as shop:
                with_a_provider(shop)
                yield shop
    finally:
        postgres.remove()


def _first_sending(shop: Shop, mistake: SqlMistake) -> str | None:
    """The order of statements that finds a mistake in those of webhooks."""
    changed = []
    for line in SENDINGS:
        with webhook_world(shop) as world, planted_in_sql(shop.engine, mistake) as changed_here:
            try:
                explore(world, line)
            except Violation as violation:
                return " ".join(str(violation).split())
        changed += changed_here
    assert changed, f"no statement has {mistake.right!r}"
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
