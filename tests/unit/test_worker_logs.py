"""How a process's log looks, on a terminal and elsewhere, and what LOG_LEVEL leaves of it."""

import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from devtools.processes import ROOT
from orders.app import create_app
from orders.config import Settings
from orders.errors import SettingsInvalid
from worker import cli
from worker.logs import LEVELS, configure_logging

#: Would start a line, colour it, clear the screen, and write from right to left.
NASTY = "a\r\nb\x1b[31m\x9b2J\u202e\x7f \u00fc"
ESCAPED = r"a\r\nb\x1b[31m\x9b2J\u202e\x7f " + "\u00fc"

#: Logs what is on standard input, where LOG_LEVEL and what standard error is have their effect.
PROGRAM = """
import logging, os, sys
import structlog
from worker.logs import configure_logging

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


# -- a terminal ----------------------------------------------------------------------------


def test_an_event_is_one_line_of_a_terminal_whatever_is_in_it() -> None:
    code = f"log.info({NASTY!r}, value={NASTY!r}, short='\\x1b[2J', inside=[{NASTY!r}])"
    line = on_terminal(code).removesuffix("\n")
    assert line.isprintable()
    assert f"[info     ] {ESCAPED} " in line
    assert line.endswith(rf"[worker] value='{ESCAPED}' short='\x1b[2J' inside=['{ESCAPED}']")


def test_the_standard_librarys_events_are_lines_of_a_terminal_too() -> None:
    line = on_terminal(f"logging.getLogger('lib').error('it is %s', {NASTY!r})").removesuffix("\n")
    assert line.isprintable()
    assert f"it is {ESCAPED}" in line


def test_an_exception_keeps_its_lines_on_a_terminal_and_nothing_else() -> None:
    code = f"try: raise ValueError({NASTY!r})\nexcept ValueError: log.exception('failed')"
    first, *lines = on_terminal(code).removesuffix("\n").split("\n")
    assert "failed" in first
    assert lines[0] == "Traceback (most recent call last):"
    assert all(line.isprintable() for line in lines)


def test_a_terminal_shows_local_time() -> None:
    line = on_terminal("log.info('now')", TZ="EAST-9:30")
    shown = datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    ahead = shown - datetime.now(UTC)
    assert abs(ahead - timedelta(hours=9.5)) < timedelta(minutes=1)


def test_colours_are_for_a_terminal_whose_user_has_not_refused_them() -> None:
    code = "log.info('started')"
    assert "\x1b[" in logged(code, terminal=True)
    assert "\x1b" not in logged(code, {"NO_COLOR": "1"}, terminal=True)
    assert "\x1b" not in logged(code)


# -- LOG_LEVEL -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("", LEVELS[1:]),
        ("  ", LEVELS[1:]),
        ("debug", LEVELS),
        ("Info", LEVELS[1:]),
        ("WARNING", LEVELS[2:]),
        ("eRRor", LEVELS[3:]),
        ("CRITICAL", LEVELS[4:]),
    ],
)
def test_a_level_silences_those_below_it_whichever_case_it_is_in(
    level: str, shown: tuple[str, ...]
) -> None:
    names = [name.lower() for name in LEVELS]
    code = "\n".join(
        f"{log}.{name}('x')" for name in names for log in ("log", "logging.getLogger('lib')")
    )
    records = [json.loads(line) for line in logged(code, {"LOG_LEVEL": level}).splitlines()]
    assert [(record["level"], record["logger"]) for record in records] == [
        (name.lower(), logger) for name in shown for logger in ("worker", "lib")
    ]


@pytest.mark.parametrize("level", ["loud", "10", "WARN", "NOTSET", "INFO DEBUG", "\x1b[2J"])
def test_an_unknown_level_is_explained_and_ends_the_worker(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOG_LEVEL", level)
    assert cli.main(["--redis-url", "redis://127.0.0.1:1", "run", "no.such:flows"]) == 1
    assert capsys.readouterr().err == (
        f"worker: LOG_LEVEL is one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not {level!r}\n"
    )


def test_an_unknown_level_is_an_invalid_setting_of_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:///never-opened.db")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("LOG_LEVEL", "loud")
    with pytest.raises(SettingsInvalid, match="DEBUG, INFO, WARNING, ERROR, CRITICAL, not 'loud'"):
        create_app()


def test_an_unknown_level_changes_nothing() -> None:
    before = (logging.root.handlers[:], logging.root.level, structlog.get_config())
    with pytest.raises(ValueError, match="LOG_LEVEL"):
        configure_logging("loud")
    assert (logging.root.handlers[:], logging.root.level, structlog.get_config()) == before


def test_an_application_made_with_settings_leaves_the_log_to_who_made_it() -> None:
    before = (logging.root.handlers[:], logging.root.level, structlog.get_config())
    create_app(Settings(database_url="sqlite:///never-opened.db", redis_url="redis://127.0.0.1:1"))
    assert (logging.root.handlers[:], logging.root.level, structlog.get_config()) == before
