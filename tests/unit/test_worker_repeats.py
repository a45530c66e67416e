"""Errors that repeat: what is written of them, on a clock that the test moves."""

import logging
from typing import Any

import pytest

from worker.watch.repeats import MOST_ERRORS, VARYING, WINDOW_SECONDS, Repeats


class Log:
    """What is written of what is logged."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.repeats = Repeats(lambda: self.now)

    def say(self, event: str = "failed", level: int = logging.ERROR, **fields: Any) -> list[Any]:
        record = logging.LogRecord("worker", level, "", 0, {"event": event, **fields}, (), None)
        return [each.msg for each in self.repeats.written(record)]

    def library(self, text: str, *args: object, error: Exception | None = None) -> list[str]:
        info = (type(error), error, None) if error else None
        record = logging.LogRecord("lib", logging.WARNING, "", 0, text, args, info)
        return [each.getMessage() for each in self.repeats.written(record)]

    def info(self) -> list[Any]:
        return self.say("fine", logging.INFO)


@pytest.fixture
def log() -> Log:
    return Log()


def test_an_error_is_logged_once_a_minute_with_its_count(log: Log) -> None:
    assert log.say(error="no route", id="a") == [
        {"event": "failed", "error": "no route", "id": "a"}
    ]
    for _ in range(479):
        log.now += WINDOW_SECONDS / 480
        assert log.say(error="no route", id="b") == []
    log.now += WINDOW_SECONDS / 480
    [said] = log.say(error="no route", id="c")
    assert said == {"event": "failed", "error": "no route", "id": "c", "repeated": 480}
    assert log.say(error="no route", id="d") == []


def test_counts_are_written_before_the_next_minutes_first_line(log: Log) -> None:
    log.say(id="a")
    log.say(id="b")
    assert log.info() == [{"event": "fine"}]
    log.now += WINDOW_SECONDS
    assert log.info() == [{"event": "failed", "id": "b", "repeated": 1}, {"event": "fine"}]
    assert log.info() == [{"event": "fine"}]


def test_an_error_that_came_once_is_nothing_to_count(log: Log) -> None:
    log.say()
    log.now += WINDOW_SECONDS
    assert log.info() == [{"event": "fine"}]
    log.say()
    log.now += WINDOW_SECONDS
    assert log.say() == [{"event": "failed"}]


def test_errors_are_the_same_but_for_what_is_different_each_time(log: Log) -> None:
    same: dict[str, Any] = dict.fromkeys(VARYING - {"exception"}, "x")
    assert len(log.say(**same)) == 1
    again: dict[str, Any] = dict.fromkeys(same, "y")
    assert log.say(**again) == []
    others: list[dict[str, Any]] = [{"queue": "b"}, {"error": "another"}]
    for other in (*others, {"exception": "Traceback\nKeyError: 1"}):
        assert len(log.say(**same, **other)) == 1
        assert log.say(**same, **other) == []
    assert log.say(exception="Traceback\n  elsewhere\nKeyError: 1") == []
    assert len(log.say(level=logging.WARNING)) == 1
    assert len(log.say("other")) == 1


def test_what_is_no_error_is_written_every_time(log: Log) -> None:
    assert [log.info() for _ in range(3)] == [[{"event": "fine"}]] * 3


def test_a_librarys_errors_are_grouped_whatever_their_text(log: Log) -> None:
    assert log.library("attempt %s of %s", 1, 9) == ["attempt 1 of 9"]
    assert log.library("attempt %s of %s", 2, 9) == []
    assert log.library("attempt %s of %s", 2, 9, error=OSError()) == ["attempt 2 of 9"]
    log.now += WINDOW_SECONDS
    assert log.library("100 %") == ["attempt 2 of 9 (repeated once)", "100 %"]


def test_known_errors_are_bounded_and_no_count_is_lost(log: Log) -> None:
    log.say("first", id="a")
    log.say("first", id="b")
    for n in range(10 * MOST_ERRORS):
        said = log.say(f"error {n}")
        counted = [{"event": "first", "id": "b", "repeated": 1}] if n == MOST_ERRORS - 1 else []
        assert said == [*counted, {"event": f"error {n}"}]
    assert len(log.repeats._known) == MOST_ERRORS


def test_the_end_writes_what_was_counted(log: Log) -> None:
    for event in ("a", "b", "c", "a", "c", "c"):
        log.say(event)
    rest: Any = [record.msg for record in log.repeats.rest()]
    assert rest == [{"event": "a", "repeated": 1}, {"event": "c", "repeated": 2}]
    assert [*log.repeats.rest()] == []
