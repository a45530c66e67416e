"""A queue with 300,000 waiting tasks and 100,000 dead letters: whoever looks at it does not hold up the server."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from devtools.valkey import Valkey
from orders.features.ops.routes import Tools
from orders.queues import QUEUE
from tests.kit.api import Api, content
from tests.kit.settling import dead_letter
from tests.ops.page import Page
from worker import DelayQueue, Due, Flow
from worker.cli import main
from worker.queue.scripted import ScriptedQueue

pytestmark = pytest.mark.slow

WAITING = [f"waiting-{n:06}" for n in range(300_000)]
DEAD = [f"dead-{n:06}" for n in range(100_000)]
LEASED = [f"leased-{n:06}" for n in range(500)]
#: What holds up the server for longer delays claims.
MOST_MS = 10
#: How often each look is tried: the machine may pause during any command, but not during the same one each time.
RUNS = 10
#: How many commands a script may run, whatever the machine's speed: they take 3 to 5 ms.
MOST_COMMANDS = 3000
#: What the server counts besides.
AROUND = {"cmdstat_config|resetstat", "cmdstat_eval", "cmdstat_evalsha"}
FAR_AWAY_MS = 2**52
FLOWS = f"{__name__}:flows"
OF_QUEUE = f"--queue {QUEUE}"

#: Each command, and its exit status.
COMMANDS = {
    f"stats {OF_QUEUE}": 0,
    f"workers {OF_QUEUE}": 0,
    f"doctor {FLOWS}": 2,  # no worker is running
    f"dead list {OF_QUEUE}": 0,
    f"dead list {OF_QUEUE} --matching NoSuchError": 0,
    f"dead show {DEAD[7]} {OF_QUEUE}": 0,
    f"dead requeue --all --dry-run {OF_QUEUE}": 0,
    f"dead purge --older-than 1h --dry-run {OF_QUEUE}": 0,
}
PAGE = ["overview", f"dead?queue={QUEUE}"]


def flows() -> list[Flow]:
    """One whose records list some of what waits as due soon, so that `doctor` looks for it."""

    def sweep(_after: float | None, before: float) -> Iterator[list[Due]]:
        for start in range(0, 5000 if before > 0 else 0, 500):
            yield [Due(task_id, 1000) for task_id in WAITING[start : start + 500]]

    return [Flow(name=QUEUE, handler=lambda _: None, sweep=sweep)]


@pytest.fixture
def server(redis_client: redis.Redis) -> Any:
    """A client of a server that has the queue, and notes what takes too long."""
    queue = DelayQueue(redis_client, QUEUE)
    queue.schedule_many((task_id, 1, b"") for task_id in DEAD)
    while tasks := queue.claim(500, 60_000).tasks:
        dead_letter(queue, [(task, "it will not do", ValueError("x")) for task in tasks])
    queue.schedule_many((task_id, 1, b"") for task_id in LEASED)
    queue.claim(len(LEASED), 3_600_000)
    queue.schedule_many((task_id, FAR_AWAY_MS, b"") for task_id in WAITING)
    redis_client.config_set("slowlog-log-slower-than", 1000 * MOST_MS)
    return redis_client


@pytest.fixture
def looks(
    api: Api, server: Any, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Callable[[], object]]:
    """Everything that reads the queue, by its name."""
    assert server.zcard(DelayQueue(server, QUEUE).keys.dead) == len(DEAD)
    monkeypatch.setattr("orders.features.ops.routes.FRESH_SECONDS", 0.0)
    api.services.made[Tools] = Tools(api.services)
    page = Page(api)

    def command(line: str) -> None:
        assert main([*line.split(), "--redis-url", valkey.url]) == COMMANDS[line]

    order = f"order/{content(api.place())['id']}"
    calls = ((command, COMMANDS), (page.get, [*PAGE, order]))
    return {name: partial(call, name) for call, names in calls for name in names}


@pytest.fixture
def commands(server: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """For each script that is called from now on, the most commands that it ran, as the server counts them."""
    found: Counter[str] = Counter()
    run = ScriptedQueue._run

    def counted(queue: ScriptedQueue, name: str, *args: Any, **options: Any) -> Any:
        server.config_resetstat()
        reply = run(queue, name, *args, **options)
        calls = {key: each["calls"] for key, each in server.info("commandstats").items()}
        inside = sum(count for key, count in calls.items() if key not in AROUND)
        found[name] = max(found[name], inside)
        return reply

    monkeypatch.setattr(ScriptedQueue, "_run", counted)
    return found


def test_no_look_at_a_large_queue_holds_up_the_server(
    server: Any, looks: dict[str, Callable[[], object]], commands: dict[str, int]
) -> None:
    assert {name: found for name, look in looks.items() if (found := slow(server, look))} == {}
    assert {*commands} >= {"stats", "look_up"}
    assert max(commands.values()) <= MOST_COMMANDS, commands


def slow(server: Any, look: Callable[[], object]) -> set[bytes]:
    """The commands of a look, with their first arguments, that take too long in each run."""
    found: set[bytes] | None = None
    for _ in range(RUNS):
        server.slowlog_reset()
        look()
        took_long = {each["command"] for each in server.slowlog_get(100)}
        found = took_long if found is None else found & took_long
        if not found:
            break
    return found or set()
