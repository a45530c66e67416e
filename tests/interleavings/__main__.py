"""Search random scenarios for as long as one likes, or try that planted mistakes are found.

python -m tests.interleavings --minutes 60 [--seed 1]
python -m tests.interleavings --self
"""

import argparse
import random
import sys
import tempfile
import time
from itertools import chain, count, takewhile
from pathlib import Path

import redis

from devtools.valkey import Valkey
from tests.interleavings.explorer import Violation, explore
from tests.interleavings.mistakes import MISTAKES, Mistake, planted
from tests.interleavings.queue_world import QueueWorld
from tests.interleavings.scenarios import FRAME, LARGE, SCENARIOS, TRANSITIONS
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
    missed = 0
    for mistake in MISTAKES:
        trace = _first_trace(client, mistake)
        missed += trace is None
        print(f"{'missed' if trace is None else 'caught'}  {mistake.describe()}\n        {trace}")
    print(f"{len(MISTAKES) - missed} of {len(MISTAKES)} mistakes were found")
    return 1 if missed else 0


def _first_trace(client: redis.Redis, mistake: Mistake) -> str | None:
    """The order of moves that finds a mistake, in the first scenario that does."""
    for line in (*SCENARIOS, *LARGE):
        world = QueueWorld(client)
        try:
            with planted(world, mistake):
                explore(world, line)
        except Violation as violation:
            return str(violation).partition("\n")[0]
    return None


if __name__ == "__main__":
    sys.exit(main())
