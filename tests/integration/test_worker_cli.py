"""The operator's commands, on a real server."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from devtools.processes import run
from devtools.valkey import Valkey
from tests.contract.state import state
from worker import DelayQueue, Flow
from worker.cli import main

FLOWS = f"{__name__}:flows"
Command = Callable[..., str]


def flows() -> list[Flow]:
    return [Flow(name="operated", handler=lambda _: None)]


@pytest.fixture
def command(valkey: Valkey, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process; returns what it printed."""

    def command(*arguments: str, status: int = 0) -> str:
        assert main(["--redis-url", valkey.url, *arguments]) == status
        return capsys.readouterr().out

    return command


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    """Two dead letters, old and new, one leased task, and one that waits."""
    queue = DelayQueue(redis_client, "operated")
    queue.schedule_many([("old", 1, b"\xffx"), ("new", 2, b"")])
    old, new = queue.claim(2, 1000, now_ms=2).tasks
    queue.dead_letter([(old, "bad", ValueError("x\n"))], now_ms=3)
    queue.dead_letter([(new, "worse", None)], now_ms=4)
    queue.schedule("leased", 5)
    queue.claim(1, 1000, now_ms=5)
    queue.schedule("waiting", 2**52)
    return queue


@pytest.mark.usefixtures("queue")
def test_stats_are_one_json_object_for_each_queue(command: Command) -> None:
    stats: dict[str, Any] = json.loads(command("stats", FLOWS, "--json"))
    assert stats.pop("next_due_in_ms") > 2**51
    assert stats == {
        "queue": "operated",
        "scheduled": 1,
        "due": 0,
        "due_within_minute": 0,
        "leased": 1,
        "dead": 2,
        "paused": False,
        "oldest_due_age_ms": 0,
    }


@pytest.mark.usefixtures("queue")
def test_stats_are_readable_without_json(command: Command) -> None:
    lines = [line.split() for line in command("stats", FLOWS).splitlines()]
    assert ["queue", "operated"] in lines
    assert ["dead", "2"] in lines


@pytest.mark.usefixtures("queue")
def test_dead_letters_are_listed_as_json_newest_first(command: Command) -> None:
    new, old = map(json.loads, command("dead", "list", FLOWS, "--json").splitlines())
    assert (new["id"], new["reason"], new["error"]) == ("new", "worse", None)
    assert old == {
        "queue": "operated",
        "id": "old",
        "reason": "bad",
        "error": "ValueError: x\n",
        "traceback": "ValueError: x\n\n",
        "failures": 0,
        "deliveries": 0,
        "due_at_ms": 1,
        "died_at_ms": 3,
        "payload": "\\xffx",
    }


@pytest.mark.usefixtures("queue")
def test_a_letter_is_one_line_whatever_is_in_it(command: Command) -> None:
    [line] = command("dead", "list", FLOWS, "--limit", "1").splitlines()
    assert "id=new" in line
    new, old = command("dead", "list", FLOWS).splitlines()
    assert "traceback" not in new + old  # --json has it


def test_all_dead_letters_are_requeued(command: Command, queue: DelayQueue) -> None:
    assert command("dead", "requeue", "--all", "--flows", FLOWS) == "requeued 2\n"
    assert set(state(queue)["scheduled"]) == {"old", "new", "waiting"}
    assert "letters" not in state(queue)


def test_a_named_letter_is_requeued_and_a_missing_one_is_an_error(
    command: Command, queue: DelayQueue
) -> None:
    printed = command("dead", "requeue", "old", "nothing", "--flows", FLOWS, status=1)
    assert printed == "requeued 1\n"
    assert set(state(queue)["scheduled"]) == {"old", "waiting"}


def test_a_named_letter_is_purged_and_no_other(command: Command, queue: DelayQueue) -> None:
    before = state(queue)
    assert command("dead", "purge", "old", "--flows", FLOWS) == "purged 1\n"
    del before["letters"]["old"], before["tokens"]["old"], before["payloads"]
    assert state(queue) == before | {"dead": ["new"]}


def test_all_dead_letters_are_purged(command: Command, queue: DelayQueue) -> None:
    command("dead", "purge", "--all", "--flows", FLOWS, "--queue", "operated")
    assert set(state(queue)) == {"scheduled", "leased", "tokens"}


def test_a_queue_is_paused_and_resumed(command: Command, queue: DelayQueue) -> None:
    before = state(queue)
    command("pause", FLOWS)
    assert state(queue) == before | {"paused": "1"}
    assert json.loads(command("stats", FLOWS, "--json"))["paused"] is True
    command("resume", FLOWS)
    assert state(queue) == before | {"resumed": "1"}


def test_the_command_line_runs_as_a_module(valkey: Valkey, queue: DelayQueue) -> None:
    printed = run(["worker", "stats", FLOWS, "--json"], {"REDIS_URL": valkey.url})
    assert json.loads(printed)["dead"] == queue.stats().dead
