"""How a process's log looks, on a terminal and elsewhere, and what LOG_LEVEL leaves of it."""

import asyncio
import dataclasses
import errno
import json
import logging
import math
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from devtools.processes import ROOT
from orders.app import create_app
from orders.config import Settings
from orders.errors import SettingsInvalid
from orders.log import log as orders_log
from tests.kit.clock import bound
from tests.kit.engine import EVENT_KINDS
from worker import Task, cli, events
from worker.log import log
from worker.runtime.event_log import EVENTS, EventLog
from worker.watch.logs import LEVELS, configure_logging

#: Would start a line, colour it, clear the screen, and write from right to left.
NASTY = "a\r\nb\x1b[31m\x9b2J\u202e\x7f \u00fc"
ESCAPED = r"a\r\nb\x1b[31m\x9b2J\u202e\x7f " + "\u00fc"

#: Logs what is on standard input, where LOG_LEVEL and what standard error is have their effect.
#: Without the rest of the engine, whose import takes longer.
PROGRAM = """
import logging, os, sys, types
sys.modules["worker"] = types.ModuleType("worker")
sys.modules["worker"].__path__ = ["worker"]
import structlog
from worker.watch.logs import configure_logging

configure_logging(os.environ.get("LOG_LEVEL", ""))
exec(sys.stdin.read(), {"log": structlog.get_logger("worker"), "logging": logging})
"""


def logged(code: str, env: Mapping[str, str] | None = None, *, terminal: bool = False) -> str:
    """What ``code`` logs, to a terminal or to a pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=code.encode(),
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "LOG_LEVEL": "", "NO_COLOR": "", **(env or {})},
        check=True,
    )
    os.close(theirs)
    text = b""
    while chunk := _read(ours):
        text += chunk
    os.close(ours)
    return text.decode().replace("\r\n", "\n")  # as a terminal ends lines


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux's way to say that nobody writes to the terminal any more
        return b""


def on_terminal(code: str, **env: str) -> str:
    return logged(code, {"NO_COLOR": "1", **env}, terminal=True)


# -- JSON ----------------------------------------------------------------------------------


def test_an_event_is_one_line_of_json_whatever_is_in_it() -> None:
    code = f"log.info({NASTY!r}, value={NASTY!r}, number=3)\nlog.warning('next')"
    lines = logged(code).split("\n")
    assert [json.loads(line)["event"] for line in lines[:-1]] == [NASTY, "next"]
    assert lines[-1] == ""
    assert all(line.isprintable() and line.isascii() for line in lines)
    record = json.loads(lines[0])
    moment = datetime.fromisoformat(record.pop("timestamp"))
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)
    assert record == {
        "event": NASTY,
        "value": NASTY,
        "number": 3,
        "level": "info",
        "logger": "worker",
    }


def test_a_line_of_json_begins_with_when_how_bad_and_what() -> None:
    record = json.loads(logged("log.info('started', zebra=1, alpha=2)"))
    assert [*record] == ["timestamp", "level", "event", "zebra", "alpha", "logger"]


def test_an_exception_is_a_part_of_its_line_of_json() -> None:
    code = f"try: raise ValueError({NASTY!r})\nexcept ValueError: log.exception('failed')"
    record = json.loads(logged(code))
    assert record["event"] == "failed"
    assert record["exception"].startswith("Traceback ")
    assert record["exception"].endswith(f"ValueError: {NASTY}")


def test_the_standard_librarys_log_looks_the_same() -> None:
    record = json.loads(logged(f"logging.getLogger('lib').error('it is %s', {NASTY!r})"))
    assert (record["logger"], record["level"]) == ("lib", "error")
    assert record["event"] == f"it is {NASTY}"
    assert json.loads(logged("logging.getLogger('lib').error({'a': 1})"))["event"] == "{'a': 1}"


# -- a terminal ----------------------------------------------------------------------------


def test_an_event_is_one_line_of_a_terminal_whatever_is_in_it() -> None:
    code = f"log.info({NASTY!r}, value={NASTY!r}, short='\\x1b[2J', inside=[{NASTY!r}])"
    line = on_terminal(code).removesuffix("\n")
    assert line.isprintable()
    assert f"[info     ] {ESCAPED} " in line
    assert line.endswith(rf"[worker] value='{ESCAPED}' short='\x1b[2J' inside=['{ESCAPED}']")


def test_the_standard_librarys_events_are_terminal_lines_too() -> None:
    line = on_terminal(f"logging.getLogger('lib').error('it is %s', {NASTY!r})").removesuffix("\n")
    assert line.isprintable()
    assert f"it is {ESCAPED}" in line


def test_only_an_exception_keeps_its_lines_on_a_terminal() -> None:
    code = f"try: raise ValueError({NASTY!r})\nexcept ValueError: log.exception('failed')"
    first, *lines = on_terminal(code).removesuffix("\n").split("\n")
    assert "failed" in first
    assert lines[0] == "  Traceback (most recent call last):"
    assert all(line.isprintable() and line.startswith("  ") for line in lines)


def test_a_terminal_shows_local_time() -> None:
    line = on_terminal("log.info('now')", TZ="EAST-9:30")
    shown = datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    ahead = shown - datetime.now(UTC)
    assert abs(ahead - timedelta(hours=9.5)) < timedelta(minutes=1)


def test_colors_are_for_a_terminal_whose_user_has_not_refused() -> None:
    code = "log.info('started')"
    assert "\x1b[" in logged(code, terminal=True)
    assert "\x1b" not in logged(code, {"NO_COLOR": "1"}, terminal=True)
    assert "\x1b" not in logged(code)


# -- secrets -------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [False, True])
def test_a_password_in_an_errors_url_is_not_logged(*, terminal: bool) -> None:
    url = "redis://orders:s3cr%2Ft@redis:6379/0"
    code = f"""
try: raise OSError("cannot open {url} twice")
except OSError as error: log.exception("it failed at {url}", error=str(error))
logging.getLogger("lib").error("no %s", "{url}")
"""
    text = logged(code, {"NO_COLOR": "1"}, terminal=terminal)
    assert "s3cr" not in text
    assert text.count("redis://orders:***@redis:6379/0") == 4


# -- events --------------------------------------------------------------------------------

ERROR = ValueError("no such customer")
TASK = Task("a", failures=2, attempt=3)
MANY = [str(n) for n in range(50)]

#: What a program that logs events begins with.
LOG_EVENT = """
from math import inf
from worker import events
from worker.flow import Task
from worker.runtime.event_log import EventLog
log_event = EventLog(lambda: 0.0)
"""

#: An event of each kind, and its line: how loud, what it says, and its fields. None: it has none.
LINES: list[tuple[events.Event, tuple[str, str, dict[str, Any]] | None]] = [
    (events.Claimed("q", [TASK], 5), None),
    (events.Waiting("q", 5.0), None),
    (
        events.Handled("q", [TASK] * 9, done=7, retries=1, failed=1, seconds=0.12345, late_ms=8),
        (
            "info",
            "batch",
            {"tasks": 9, "done": 7, "retries": 1, "failed": 1, "seconds": 0.123, "late_ms": 8},
        ),
    ),
    (
        events.Handled(
            "q", [TASK], done=1, retries=0, failed=0, seconds=1.0, late_ms=8, without_redis=True
        ),
        (
            "info",
            "handled without Redis",
            {
                "tasks": 1,
                "id": "a",
                "attempt": 3,
                "done": 1,
                "retries": 0,
                "failed": 0,
                "seconds": 1.0,
                "late_ms": 8,
            },
        ),
    ),
    (
        events.Retried("q", TASK, 60_000.4),
        ("debug", "retry", {"id": "a", "attempt": 3, "delay_ms": 60_000}),
    ),
    (
        events.Retried("q", TASK, 50.0, ERROR),
        (
            "warning",
            "unavailable to this task",
            {"id": "a", "attempt": 3, "delay_ms": 50, "error": "ValueError: no such customer"},
        ),
    ),
    (
        events.Failed("q", TASK, ERROR, 532.25),
        (
            "warning",
            "task failed",
            {
                "id": "a",
                "attempt": 3,
                "delay_ms": 532,
                "error": "ValueError: no such customer",
                "exception": "ValueError: no such customer",
            },
        ),
    ),
    (
        events.Failed("q", TASK, ERROR, math.inf),
        (
            "warning",
            "task failed",
            {
                "id": "a",
                "attempt": 3,
                "error": "ValueError: no such customer",
                "exception": "ValueError: no such customer",
            },
        ),
    ),
    (
        events.Died("q", TASK, "failed too often", ERROR),
        (
            "error",
            "dead letter",
            {
                "id": "a",
                "attempt": 3,
                "reason": "failed too often",
                "error": "ValueError: no such customer",
                "exception": "ValueError: no such customer",
            },
        ),
    ),
    (
        events.Died("q", TASK, "delivered too often", None),
        (
            "error",
            "dead letter",
            {"id": "a", "attempt": 3, "reason": "delivered too often"},
        ),
    ),
    (events.Restored("q", 7), ("info", "restored", {"tasks": 7})),
    (
        events.LeaseLost("q", MANY),
        ("warning", "lease lost, nothing written", {"tasks": 50, "ids": MANY[:10]}),
    ),
    (
        events.RanTooLong("q", ("a",)),
        ("error", "handler runs too long, its lease ends", {"tasks": 1, "ids": ["a"]}),
    ),
    (
        events.RedisLost("q", ERROR),
        (
            "error",
            "Redis does not serve claims",
            {"error": "ValueError: no such customer"},
        ),
    ),
    (events.RedisBack("q", 2.0004), ("info", "Redis serves claims again", {"seconds": 2.0})),
    (
        events.FlowDown("q", ERROR),
        ("error", "unavailable", {"error": "ValueError: no such customer"}),
    ),
    (events.FlowUp("q", 2.0006), ("info", "available", {"seconds": 2.001})),
    (
        events.Hangs("q", "probe", 10.5),
        ("error", "a call hangs", {"what": "probe", "seconds": 10.5}),
    ),
]


@pytest.mark.parametrize(("event", "line"), LINES, ids=lambda value: type(value).__name__)
def test_an_event_is_logged_in_one_line_or_not_at_all(
    event: events.Event, line: tuple[str, str, dict[str, Any]] | None
) -> None:
    with capture_logs() as logged:
        EventLog(time.monotonic)(event)
    expected = []
    if line is not None:
        level, text, fields = line
        expected = [{"log_level": level, "event": text, "queue": "q", **fields}]
    assert logged == expected


def test_each_kind_of_event_is_logged_or_left_out_on_purpose() -> None:
    kinds = {type(event) for event, _ in LINES}
    assert kinds == {*EVENT_KINDS}
    assert {*EVENTS} == kinds - {events.Claimed, events.Waiting}


def test_an_event_that_nobody_knows_is_not_logged() -> None:
    @dataclasses.dataclass(frozen=True)
    class Refunded:
        queue: str

    unknown: Any = Refunded("q")
    with capture_logs() as logged:
        EventLog(time.monotonic)(unknown)
    assert logged == []


@pytest.mark.parametrize(
    "kind", ["Failed('q', Task('a'), error, inf)", "Died('q', Task('a'), 'bad', error)"]
)
def test_a_failures_event_is_one_line_of_json_with_its_traceback(kind: str) -> None:
    code = (
        f"{LOG_EVENT}\ntry: raise ValueError({NASTY!r})\n"
        f"except ValueError as error: log_event(events.{kind})"
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    [line] = logged(code).splitlines()
    record = json.loads(line, parse_constant=refuse)
    assert (record["queue"], record["id"], record["logger"]) == ("q", "a", "worker")
    assert record["exception"].startswith("Traceback ")
    assert record["exception"].endswith(f"ValueError: {NASTY}")


def test_a_death_that_no_error_caused_has_no_traceback() -> None:
    event = "events.Died('q', Task('a'), 'delivered too often', None)"
    [line] = logged(f"{LOG_EVENT}\nlog_event({event})").splitlines()
    assert not json.loads(line).keys() & {"exception", "exc_info", "error"}


@pytest.mark.parametrize("at", ["", "@host"])
def test_a_long_error_full_of_urls_is_written_in_no_time(at: str) -> None:
    began = time.monotonic()
    code = f"log.error('refused', error='http://user:secret{at}/' * 60_000)"
    record = json.loads(logged(code))
    assert time.monotonic() - began < bound(5)
    assert len(record["error"]) < 21_000
    assert record["error"].startswith("http://user:" + ("***" if at else "secret"))


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), asyncio.CancelledError()]
)
def test_an_error_of_the_log_itself_is_dropped(error: BaseException) -> None:
    def full(*_: object) -> str:
        raise error

    events_seen: list[events.Event] = []
    before = structlog.get_config()
    structlog.configure(processors=[full])
    try:
        events.Listeners([EventLog(time.monotonic), events_seen.append])(events.Restored("q", 1))
        log.error("nor does this")
    finally:
        structlog.configure(**before)
    assert events_seen == [events.Restored("q", 1)]


@pytest.mark.parametrize("level", ["warning", "exception"])
@pytest.mark.parametrize("written_to", [log, orders_log], ids=["worker", "orders"])
def test_a_traceback_is_passed_on_as_text(written_to: Any, level: str) -> None:
    """Unless it is configured, structlog would show the local variables, and follow causes in a circle for ever."""
    with capture_logs() as lines:
        try:
            dict[str, int]().pop("x")
        except KeyError as error:
            error.__cause__ = ValueError("its cause")
            error.__cause__.__cause__ = error
            getattr(written_to, level)(
                "failed", **({"exc_info": error} if level == "warning" else {})
            )
    [line] = lines
    assert "exc_info" not in line
    assert line["exception"].startswith("ValueError: its cause\n\nThe above exception")
    assert line["exception"].count("KeyError: 'x'") == 1


def test_a_handler_of_somebody_else_may_show_the_process() -> None:
    code = """
handler = logging.StreamHandler(open(2, "w", closefd=False))
shown = "%(process)d %(thread)d %(processName)s %(threadName)s %(filename)s %(lineno)d"
handler.setFormatter(logging.Formatter(shown))
server = logging.getLogger("server")
server.addHandler(handler)
server.propagate = False
server.error("up")
"""
    assert re.fullmatch(r"\d+ \d+ MainProcess MainThread .+ \d+\n", logged(code))


# -- LOG_LEVEL -----------------------------------------------------------------------------


def test_a_level_silences_those_below_it_whichever_case_it_is_in() -> None:
    shown = {
        "": LEVELS[1:],
        "  ": LEVELS[1:],
        "debug": LEVELS,
        "Info": LEVELS[1:],
        "WARNING": LEVELS[2:],
        "eRRor": LEVELS[3:],
        "CRITICAL": LEVELS[4:],
    }
    code = f"""
from worker.watch.logs import configure_logging
for level in {[*shown]}:
    configure_logging(level)
    for name in {[name.lower() for name in LEVELS]}:
        getattr(log, name)(level)
        getattr(logging.getLogger("lib"), name)(level)
"""
    records = [json.loads(line) for line in logged(code).splitlines()]
    assert [(record["event"], record["level"], record["logger"]) for record in records] == [
        (level, name.lower(), logger)
        for level, names in shown.items()
        for name in names
        for logger in ("worker", "lib")
    ]


@pytest.mark.parametrize("level", ["loud", "10", "WARN", "NOTSET", "INFO DEBUG", "\x1b[2J"])
def test_an_unknown_level_is_explained_and_ends_the_worker(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOG_LEVEL", level)
    assert cli.main(["run", "--redis-url", "redis://127.0.0.1:1", "no.such:flows"]) == 1
    assert capsys.readouterr().err == (
        f"worker: LOG_LEVEL is one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not {level!r}\n"
    )


def test_an_unknown_level_is_an_invalid_setting_of_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql+psycopg:///never-opened")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("LOG_LEVEL", "loud")
    with pytest.raises(SettingsInvalid, match="DEBUG, INFO, WARNING, ERROR, CRITICAL, not 'loud'"):
        create_app()


def test_an_unknown_level_changes_nothing() -> None:
    before = (logging.root.handlers[:], logging.root.level, structlog.get_config())
    with pytest.raises(ValueError, match="LOG_LEVEL"):
        configure_logging("loud")
    assert (logging.root.handlers[:], logging.root.level, structlog.get_config()) == before


def test_an_app_made_with_settings_does_not_configure_logging() -> None:
    before = (logging.root.handlers[:], logging.root.level, structlog.get_config())
    create_app(
        Settings.of(
            database_url="postgresql+psycopg:///never-opened", redis_url="redis://127.0.0.1:1"
        )
    )
    assert (logging.root.handlers[:], logging.root.level, structlog.get_config()) == before
