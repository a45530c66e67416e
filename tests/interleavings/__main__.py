"""Search random scenarios for as long as one likes, or try that planted mistakes are found.

python -m tests.interleavings --minutes 60 [--seed 1]
python -m tests.interleavings --self
python -m tests.interleavings --count    # how much `make test` and `make test-all` search completely
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
    OF_RUNS,
    OF_SENDINGS,
    PAIRS,
    RECURRING,
    RECURRING_FRAME,
    RUNS_FRAME,
    SCENARIOS,
    SENDING_FRAME,
    SENDING_PAIRS,
    SENDINGS,
    TRANSITIONS,
    TURNS,
)
from tests.interleavings.test_statements import CASES, OPERATIONS, at, search
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
    parser.add_argument("--count", action="store_true", help="count states and steps instead")
    options = parser.parse_args()
    server = Valkey(Path(tempfile.mkdtemp()))
    server.start()
    try:
        # To write logs would take longer than all the rest.
        with connect(server.url, timeout_seconds=5) as client, capture_logs():
            if options.self:
                return _plant(client)
            if options.count:
                return _count(client)
            return _search(client, options.minutes, options.seed)
    finally:
        server.stop()


class Draw(NamedTuple):
    """A world, and what chance adds to the beginning of a scenario in it."""

    world: Callable[[redis.Redis, Shop], AbstractContextManager[World]]
    frame: str
    transitions: Sequence[str]
    #: How many it adds at most.
    most: int = 2


def _queue(client: redis.Redis, _: Shop) -> AbstractContextManager[World]:
    return nullcontext(QueueWorld(client))


def _consumers(client: redis.Redis, _: Shop) -> AbstractContextManager[World]:
    return nullcontext(ConsumerWorld(client))


def _recurring(client: redis.Redis, _: Shop) -> AbstractContextManager[World]:
    return nullcontext(RecurringWorld(client))


def _webhooks(_: redis.Redis, shop: Shop) -> AbstractContextManager[World]:
    return webhook_world(shop)


DRAWS = [
    Draw(_queue, FRAME, TRANSITIONS, 5),
    Draw(_queue, RUNS_FRAME, OF_RUNS, 4),
    Draw(_consumers, CONSUMER_FRAME, OF_CONSUMERS),
    Draw(_recurring, RECURRING_FRAME, OF_RECURRING),
    Draw(_webhooks, SENDING_FRAME, OF_SENDINGS, 3),
]


def _search(client: redis.Redis, minutes: float, seed: int) -> int:
    """Search frames with random transitions, and meetings of random operations, again and again."""
    chance, ends = random.Random(seed), time.monotonic() + 60 * minutes
    states = steps = complete = number = meetings = 0
    for shop in _shops():
        while time.monotonic() < ends:
            number += 1
            draw = chance.choices(DRAWS, weights=(3, 1, 1, 1, 1))[0]
            added = chance.choices(draw.transitions, k=chance.randint(2, draw.most))
            line = ", ".join((draw.frame, *added))
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


def _count(client: redis.Redis) -> int:
    """Search what the tests search completely, and print how much that is."""
    counted: dict[str, tuple[Callable[..., AbstractContextManager[World]], list[str]]] = {
        "scenarios of the queue": (_queue, SCENARIOS),
        "larger ones": (_queue, LARGE),
        "pairs": (_queue, PAIRS),
        "scenarios of consumers": (_consumers, CONSUMERS),
        "scenarios of recurring flows": (_recurring, RECURRING),
        "scenarios of webhooks": (_webhooks, SENDINGS),
        "pairs of webhooks": (_webhooks, SENDING_PAIRS),
    }
    for shop in _shops():
        for name, (world, lines) in counted.items():
            states = steps = 0
            for line in lines:
                with world(client, shop) as made:
                    found = explore(made, line)
                states, steps = states + found.states, steps + found.steps
            print(f"{len(lines):4} {name}: {states:,} states, {steps:,} steps", flush=True)
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
    script = mistake.only if isinstance(mistake, Mistake) else ""
    lines = sorted([*SCENARIOS, *LARGE], key=lambda line: script not in line)
    kinds = [(QueueWorld, lines)]
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
