"""Search random scenarios for as long as one likes.

python -m tests.interleavings --minutes 60 [--seed 1]
python -m tests.interleavings --count    # how much `make test` and `make test-all` search completely
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import redis
from structlog.testing import capture_logs

from devtools.postgres import Postgres
from devtools.valkey import Valkey
from tests.interleavings.lanes import ConsumerWorld, RecurringWorld, WorkerWorld
from tests.interleavings.meetings import CASES, OPERATIONS, at, search
from tests.interleavings.queue_world import QueueWorld
from tests.interleavings.scenarios import (
    BACKLOG_FRAME,
    BACKLOGS,
    CONSUMER_FRAME,
    CONSUMERS,
    FRAME,
    LARGE,
    OF_CONSUMERS,
    OF_LANES,
    OF_RECURRING,
    OF_RUNS,
    PAIRS,
    RECURRING,
    RECURRING_FRAME,
    RUNS_FRAME,
    SCENARIOS,
    TRANSITIONS,
)
from tests.kit.databases import empty_database, upgrade
from tests.kit.explorer import World, explore
from tests.kit.shop import PATIENT, Shop, opened

# <webhooks>
from tests.webhooks.scenarios import (
    OF_SENDINGS,
    SENDING_FRAME,
    SENDING_PAIRS,
    SENDINGS,
)
from tests.webhooks.world import webhook_world

# </webhooks>
from worker import connect

#: Of one random scenario: about a minute.
MOST_STEPS = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Search all orders of random steps.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--count", action="store_true", help="count states and steps instead")
    options = parser.parse_args()
    server = Valkey(Path(tempfile.mkdtemp()))
    server.start()
    try:
        # To write logs would take longer than all the rest.
        with connect(server.url, timeout_seconds=5) as client, capture_logs():
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


def _workers(client: redis.Redis, _: Shop) -> AbstractContextManager[World]:
    return nullcontext(WorkerWorld(client))


# <webhooks>
def _webhooks(_: redis.Redis, shop: Shop) -> AbstractContextManager[World]:
    return webhook_world(shop)


# </webhooks>


DRAWS = [
    Draw(_queue, FRAME, TRANSITIONS, 5),
    Draw(_queue, RUNS_FRAME, OF_RUNS, 4),
    Draw(_consumers, CONSUMER_FRAME, OF_CONSUMERS),
    Draw(_recurring, RECURRING_FRAME, OF_RECURRING),
    Draw(_workers, BACKLOG_FRAME, OF_LANES),
    Draw(_webhooks, SENDING_FRAME, OF_SENDINGS, 3),  # <webhooks/>
]


def _search(client: redis.Redis, minutes: float, seed: int) -> int:
    """Search frames with random transitions, and meetings of random operations, again and again."""
    chance, ends = random.Random(seed), time.monotonic() + 60 * minutes
    states = steps = complete = number = meetings = 0
    for shop in _shops():
        while time.monotonic() < ends:
            number += 1
            draw = chance.choice([*DRAWS, *2 * DRAWS[:1]])
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
        "scenarios of backlogs": (_workers, BACKLOGS),
        "scenarios of webhooks": (_webhooks, SENDINGS),  # <webhooks/>
        "pairs of webhooks": (_webhooks, SENDING_PAIRS),  # <webhooks/>
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


if __name__ == "__main__":
    sys.exit(main())
