"""The operator's commands, on a real server."""

import codecs
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from rich.console import Console

from devtools.processes import ROOT, run
from devtools.valkey import Valkey
from tests.kit.length import quick_first
from tests.kit.queue_state import state
from tests.kit.settling import dead_letter
from worker import DelayQueue, Flow, Recurring, Task
from worker.cli import main

FLOWS = f"{__name__}:flows"
Command = Callable[..., str]


def flows() -> list[Flow]:
    return [Flow(name="operated", handler=lambda _: None)]


@pytest.fixture
def command(valkey: Valkey, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process; returns what it printed."""

    def command(*arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--redis-url", valkey.url]) == status
        return capsys.readouterr().out

    return command


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, where pyproject.toml names the flows."""
    (tmp_path / "pyproject.toml").write_text(f'[tool.worker]\nflows = "{FLOWS}"\n')
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    """Two dead letters, old and new, one leased task, and one that waits."""
    queue = DelayQueue(redis_client, "operated")
    queue.schedule_many([("old", 1, b"\xffx"), ("new", 2, b"")])
    old, new = queue.claim(2, 1000, now_ms=2).tasks
    dead_letter(queue, [(old, "bad", ValueError("x\n"))], now_ms=3)
    dead_letter(queue, [(new, "worse", None)], now_ms=4)
    queue.schedule("leased", 5)
    queue.claim(1, 1000, now_ms=5)
    queue.schedule("waiting", 2**52)
    return queue


@pytest.mark.usefixtures("queue")
def test_stats_are_one_json_object_for_each_queue(command: Command) -> None:
    stats: dict[str, Any] = json.loads(command("stats", FLOWS, "--json"))
    assert stats.pop("next_due_in_ms") > 2**51
    assert stats.pop("oldest_dead_age_ms") > 10**12, "died in 1970"
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
    heading, row = (line.split() for line in command("stats", FLOWS).splitlines())
    assert heading[:3] == ["QUEUE", "SCHEDULED", "DUE"]
    assert row[:6] == ["operated", "1", "0", "0", "1", "2"]


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
    _, new, count = command("dead", "list", FLOWS, "--limit", "1").splitlines()
    assert new.startswith("new ")
    assert count == "1 of 2 dead letters in operated"
    assert len(command("dead", "list", FLOWS).splitlines()) == 4


def test_all_dead_letters_are_requeued(command: Command, queue: DelayQueue) -> None:
    assert command("dead", "requeue", "--all", "--flows", FLOWS) == "requeued 2\n"
    assert set(state(queue)["scheduled"]) == {"old", "new", "waiting"}
    assert "letters" not in state(queue)


def test_a_named_letter_is_requeued_and_a_missing_one_fails(
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
    assert state(queue) == before


@pytest.mark.usefixtures("queue", "project")
def test_a_queue_alone_need_not_be_one_of_the_configured_flows(
    command: Command, redis_client: redis.Redis
) -> None:
    DelayQueue(redis_client, "emails").schedule("a", delay_ms=60_000)
    assert json.loads(command("stats", "--queue", "emails", "--json"))["scheduled"] == 1
    assert command("pause", "--queue", "emails") == "emails is paused\n"
    printed = command("doctor", "--queue", "emails", "--json", status=2)  # no worker serves it
    found = {each["check"]: each for each in map(json.loads, printed.splitlines())}
    assert "flows" not in found
    assert "emails" in found["queue.workers"]["summary"]


def test_the_command_line_runs_as_a_module(valkey: Valkey, queue: DelayQueue) -> None:
    printed = run(["worker", "stats", FLOWS, "--json"], {"REDIS_URL": valkey.url})
    assert json.loads(printed)["dead"] == queue.stats().dead


# -- filters -------------------------------------------------------------------------------


@pytest.fixture
def letters(redis_client: redis.Redis) -> DelayQueue:
    """250 dead letters, 25 of them of another kind; the first hundred died long ago."""
    queue = DelayQueue(redis_client, "operated")
    queue.schedule_many((f"{n:03}", n, b"large") for n in range(250))
    tasks = queue.claim(250, 1000, now_ms=250).tasks
    now_ms = queue.server_time_ms()
    for first, last, died_at_ms in ((0, 100, now_ms - 7_200_000), (100, 250, now_ms - 60_000)):
        dead_letter(queue, [_burial(task) for task in tasks[first:last]], now_ms=died_at_ms)
    return queue


def _burial(task: Task) -> tuple[Task, str, BaseException | None]:
    if int(task.id) % 10:
        return task, "failed 5 times", ValueError("bad")
    return task, "it Timed out", TimeoutError("slow")


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead", "list"),
        ("dead", "list", "--matching", "ValueError", "--limit", "250"),
        ("dead", "list", "--matching", "nothing like it"),
        ("dead", "requeue", "--all"),
        ("dead", "requeue", "--matching", "TimeoutError"),
        ("dead", "purge", "--all"),
        ("dead", "purge", "--older-than", "1s"),
        ("dead", "purge", "--all", "--dry-run"),
        ("stats",),
        ("workers",),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("letters")
def test_no_redis_command_is_about_over_a_hundred_dead_letters(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """So that none holds it for long, and none brings much at once, however many letters there are."""
    sizes: list[int] = []
    send, pack = redis.Connection.send_command, redis.Connection.pack_commands

    def send_one(connection: redis.Connection, *words: Any, **more: Any) -> Any:
        sizes.append(letters_in(*words))
        return send(connection, *words, **more)  # type: ignore[no-untyped-call]

    def pack_many(connection: redis.Connection, commands: Sequence[Any]) -> Any:
        sizes.append(len(commands))
        return pack(connection, commands)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(redis.Connection, "send_command", send_one)
    monkeypatch.setattr(redis.Connection, "pack_commands", pack_many)
    command(*arguments, "-f", FLOWS)
    assert max(sizes) <= 100


def letters_in(name: str, *words: Any) -> int:
    """How many dead letters a command reads or changes, at most."""
    if name == "LRANGE":
        return int(words[2]) - int(words[1]) + 1
    return len(words) - 1 if name in ("HMGET", "EVALSHA") else 1


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--matching", "timed out"], 25),
        (["--matching", r"^failed \d times$"], 225),
        (["--matching", "nothing"], 0),
        (["--matching", "^TimeoutError:"], 25),
        (["--older-than", "1h"], 100),
        (["--newer-than", "1h"], 150),
        (["--older-than", "1h", "--matching", "out"], 10),
        (["--older-than", "1h", "--newer-than", "1h"], 0),
        (["--newer-than", "0s"], 0),
        (["--older-than", "0s"], 250),
    ],
)
def test_dead_letters_are_filtered(
    command: Command, letters: DelayQueue, filters: list[str], count: int
) -> None:
    before = state(letters)
    shown = command("dead", "list", FLOWS, *filters, "--limit", "250", "--json").splitlines()
    assert len(shown) == count
    counted = command("dead", "purge", "-f", FLOWS, *filters, "--dry-run")
    assert counted == f"would be purged {count}\n"
    assert state(letters) == before
    assert command("dead", "requeue", "-f", FLOWS, *filters) == f"requeued {count}\n"
    assert letters.stats().dead == 250 - count
    matched = {json.loads(line)["id"] for line in shown}
    assert matched == set(state(letters).get("scheduled", {}))


def test_a_filtered_list_is_newest_first_and_limited(command: Command, letters: DelayQueue) -> None:
    lines = command("dead", "list", "-q", letters.name, "-f", FLOWS, "--matching", "TimeoutError")
    ids = [line.split()[0] for line in lines.splitlines()[1:-1]]
    assert ids == [f"{n:03}" for n in range(240, -1, -10)]
    limited = command("dead", "list", FLOWS, "--matching", "TimeoutError", "--limit", "2", "--json")
    rows = [*map(json.loads, limited.splitlines())]
    assert [row["id"] for row in rows] == ["240", "230"]
    assert {row["payload"] for row in rows} == {"large"}


def test_a_letter_is_shown_with_its_traceback(command: Command, letters: DelayQueue) -> None:
    shown = command("dead", "show", "007", "-f", FLOWS)
    assert "          id  007\n" in shown
    assert "              ValueError: bad\n" in shown
    both = command("dead", "show", "007", "nobody", "--json", "-f", FLOWS, status=1)
    assert json.loads(both)["traceback"] == "ValueError: bad\n"
    assert letters.stats().dead == 250


def test_what_was_changed_is_told_as_json(command: Command, letters: DelayQueue) -> None:
    counted = command("dead", "purge", "001", "--dry-run", "--json", "-f", FLOWS)
    assert json.loads(counted) == {"queue": "operated", "would_be_purged": 1}
    done = command("dead", "purge", "001", "002", "--json", "-f", FLOWS)
    assert json.loads(done) == {"queue": "operated", "purged": 2}
    assert letters.stats().dead == 248


# -- schedule, cancel, pause ---------------------------------------------------------------


def test_a_task_is_scheduled_and_cancelled(command: Command, redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, "operated")
    assert command("schedule", "a", "b", "--in", "1h", "--payload", "é", "-f", FLOWS) == (
        "a  created\nb  created\n"
    )
    assert 3_540_000 < (queue.stats().next_due_in_ms or 0) <= 3_600_001, "rounded up"
    assert state(queue)["payloads"] == {"a": "é".encode(), "b": "é".encode()}
    moved = command("schedule", "a", "--at", "2040-01-01T00:00:00Z", "--json", "-f", FLOWS)
    assert json.loads(moved) == {"queue": "operated", "id": "a", "result": "rescheduled"}
    assert state(queue)["scheduled"]["a"] == 2_208_988_800_000
    gone = command("cancel", "a", "b", "c", "-f", FLOWS, status=1)
    assert gone == "a  removed\nb  removed\nc  missing\n"
    assert state(queue) == {}


@pytest.mark.usefixtures("queue")
def test_a_dead_letter_is_not_scheduled(command: Command) -> None:
    assert command("schedule", "old", "--in", "1s", "-f", FLOWS, status=1) == "old  dead\n"


def test_a_pause_says_what_is_paused(command: Command) -> None:
    assert command("pause", "--queue", "operated", "-f", FLOWS) == "operated is paused\n"
    resumed = json.loads(command("resume", FLOWS, "--json"))
    assert resumed == {"queue": "operated", "paused": False}


@pytest.mark.parametrize(
    "words",
    [
        *(["stats"], ["workers"], ["doctor"], ["dead", "list"], ["dead", "show", "a"]),
        *(["dead", "purge", "--all"], ["schedule", "a", "--in", "1h"], ["cancel", "a"]),
        *(["pause"], ["resume"]),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("project")
def test_a_queue_that_does_not_exist_is_refused_with_the_names_of_the_flows(
    words: list[str],
    redis_client: redis.Redis,
    valkey: Valkey,
    capsys: pytest.CaptureFixture[str],
) -> None:
    DelayQueue(redis_client, "emails").schedule("a", delay_ms=60_000)
    command = [*words, "--redis-url", valkey.url, "--queue"]
    assert main([*command, "opreated"]) == 1
    assert capsys.readouterr() == (
        "",
        (
            "worker: no queue 'opreated' in Redis: for a new one pass --new "
            "(no queue 'opreated': the flows have operated. For other flows pass --flows)\n"
        ),
    )
    assert redis_client.dbsize() == 1
    for known in (["operated"], ["emails"], ["opreated", "--new"]):
        main([*command, *known])
        assert "no queue" not in capsys.readouterr().err


@pytest.mark.usefixtures("redis_client")
def test_a_queue_that_does_not_exist_is_refused_without_flows(
    valkey: Valkey,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["stats", "--redis-url", valkey.url, "--queue", "q"]) == 1
    assert "no queue 'q' in Redis: for a new one pass --new" in capsys.readouterr().err


# -- recurring flows -----------------------------------------------------------------------


def recurring() -> list[Flow]:
    """A flow that runs once a year, in Berlin, and one of another kind."""
    yearly = Recurring(
        "yearly", cron="0 2 24 12 *", timezone="Europe/Berlin", handler=lambda _: None
    )
    return [yearly, *flows()]


RECURRING = f"{__name__}:recurring"


def test_an_extra_run_leaves_the_planned_one_alone(
    command: Command, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, "yearly")
    [yearly, _] = recurring()
    assert isinstance(yearly, Recurring)
    upcoming = yearly.schedule.after(queue.server_time_ms())
    queue.seed(str(yearly.schedule), 1, upcoming)
    run = json.loads(command("run-now", RECURRING, "--json"))
    assert run["result"] == "created"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0[12]:00", run["id"])
    [extra] = queue.claim(9, 1000).tasks
    assert extra.id == run["id"]
    assert extra.due_at_ms == round(1000 * datetime.fromisoformat(extra.id).timestamp())
    assert state(queue)["scheduled"] == dict([upcoming])


def test_a_flow_that_does_not_recur_has_no_extra_run(
    command: Command, capsys: pytest.CaptureFixture[str], valkey: Valkey
) -> None:
    assert main(["run-now", "--redis-url", valkey.url, FLOWS]) == 1
    assert "none of these flows is recurring" in capsys.readouterr().err
    command("run-now", RECURRING, "--queue", "operated", status=1)


# -- on a terminal -------------------------------------------------------------------------


@contextmanager
def on_a_terminal(valkey: Valkey, *arguments: str, **env: str) -> Iterator["Screen"]:
    """The command line as a person starts it, 80 columns wide."""
    leader, follower = pty.openpty()
    size = {"COLUMNS": "80", "LINES": "30", "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [sys.executable, "-m", "worker", *arguments],
        cwd=ROOT,
        env={**os.environ, **size, "REDIS_URL": valkey.url, **env},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        yield Screen(child, leader)
    finally:
        child.kill()
        child.wait()
        os.close(leader)


class Screen:
    """What a command shows, and how it is answered."""

    def __init__(self, child: "subprocess.Popen[bytes]", leader: int) -> None:
        self.child = child
        self._leader = leader
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a part may end within a character
        self.text = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            if not self._read():
                break
        assert text in self.text, self.text

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def end(self) -> int:
        """Wait for the end; the exit status."""
        while self._read():
            pass
        return self.child.wait(60)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._leader], [], [], 1.0)
        if not ready:
            return self.child.poll() is None
        with suppress(OSError):  # Linux's answer when the other side is closed
            if chunk := os.read(self._leader, 65_536):
                self.text += self._decoder.decode(chunk)
                return True
        return False


@pytest.mark.usefixtures("queue")
def test_an_outage_of_redis_does_not_end_the_watch(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, calls = DelayQueue.stats, iter((True, False, True))
    shown = io.StringIO()
    screen = Console(file=shown, force_terminal=True)

    def sometimes(queue: DelayQueue) -> Any:
        answers = next(calls, None)
        if answers is None:
            raise KeyboardInterrupt
        if not answers:
            raise redis.ConnectionError("refused")
        return counts(queue)

    monkeypatch.setattr(DelayQueue, "stats", sometimes)
    monkeypatch.setattr("worker.cli.stats.terminal", lambda: screen)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    command("stats", FLOWS, "--watch")
    assert "Redis: refused" in shown.getvalue()


def test_there_is_nothing_to_watch_without_a_terminal(command: Command) -> None:
    command("stats", FLOWS, "--watch", status=1)


@pytest.mark.parametrize(
    ("arguments", "env"),
    quick_first(
        [
            (["stats"], {}),
            (["dead", "list"], {}),
            (["workers"], {}),
            (["doctor"], {}),
            (["doctor"], {"NO_COLOR": "1"}),
            (["stats"], {"TERM": "dumb"}),
        ]
    ),
    ids=" ".join,
)
def test_80_columns_are_enough_and_colors_can_be_left_out(
    valkey: Valkey, queue: DelayQueue, arguments: list[str], env: dict[str, str]
) -> None:
    started = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    queue.beat("host:1:abcdef", {"up": True, "holds": 0, "started_at": started})
    with on_a_terminal(valkey, *arguments, "-f", FLOWS, **env) as screen:
        screen.end()
    assert "operated" in screen.text
    colors = re.search(r"\x1b\[[\d;]*3[0-7]", screen.text)
    assert not colors or not env
    if "TERM" in env:
        assert "\x1b" not in screen.text
    else:
        assert max(map(len, _plain(screen.text).splitlines())) <= 80


def test_80_columns_show_ids_whole(valkey: Valkey, redis_client: redis.Redis) -> None:
    queue, task_id = DelayQueue(redis_client, "operated"), "01a218a0-ce23-77c1-a28f-b0f8e9704bb9"
    queue.schedule(task_id, 1)
    dead_letter(queue, [(queue.claim(1, 1000).tasks[0], "bad", ValueError("its text is long" * 9))])
    with on_a_terminal(valkey, "dead", "list", "-f", FLOWS) as screen:
        screen.end()
    assert task_id in _plain(screen.text)


@pytest.mark.usefixtures("queue")
def test_a_command_that_cannot_print_ends_with_a_sentence(valkey: Valkey) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "worker", "dead", "list", FLOWS, "--redis-url", valkey.url]
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr.splitlines()[0] == "worker: [Errno 28] No space left on device"


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_person_is_asked_before_dead_letters_are_purged(
    valkey: Valkey, queue: DelayQueue
) -> None:
    purge = ["dead", "purge", "--all", "-f", FLOWS]
    with on_a_terminal(valkey, *purge) as screen:
        screen.wait_for("Purge 2 dead letters of operated? [y/N]")
        screen.type("\n")
        assert screen.end() == 1
    assert queue.stats().dead == 2
    with on_a_terminal(valkey, *purge) as screen:
        screen.wait_for("[y/N]")
        screen.type("y\n")
        assert screen.end() == 0
    assert "purged 2" in screen.text
    assert queue.stats().dead == 0
    with on_a_terminal(valkey, *purge, "--yes") as screen:
        assert screen.end() == 0


def test_a_watch_is_drawn_in_place_until_ctrl_c(valkey: Valkey, queue: DelayQueue) -> None:
    with on_a_terminal(valkey, "stats", "--watch", "-f", FLOWS) as screen:
        screen.wait_for("No worker is running: no task is handled.")
        queue.beat("host:1:abcdef", {"up": True, "holds": 0, "started_at": "now"})
        screen.wait_for("host:1:abcdef")
        queue.schedule("soon", delay_ms=3_600_000)
        screen.wait_for("in 60 min")
        queue.pause(by="anna")
        screen.wait_for("anna")
        screen.child.send_signal(signal.SIGINT)
        assert screen.end() == 0
    assert "Traceback" not in screen.text
    assert max(map(len, _plain(screen.text).splitlines())) <= 80


def test_a_reader_that_has_seen_enough_is_no_error(valkey: Valkey, letters: DelayQueue) -> None:
    reading = f"{sys.executable} -m worker dead list -q {letters.name} -f {FLOWS} | head -1"
    done = subprocess.run(
        ["bash", "-c", reading],  # noqa: S607
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": valkey.url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ID ")
    assert done.stderr == ""
