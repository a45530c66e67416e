"""What an application writes: flows, outcomes, and the adaptor for one task at a time."""

import math
from typing import Any

import pytest

from worker import (
    DeadLetter,
    Flow,
    FlowNotFound,
    LeaseLost,
    Retry,
    Task,
    Unavailable,
    one_at_a_time,
)
from worker.flow import MAX_BATCH_SIZE

TASKS = [Task(name) for name in "abc"]


def _nothing(_tasks: object) -> None:
    pass


@pytest.mark.parametrize("name", ["a", "order-timeout", "A_z.0:9", "x" * 100])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert Flow(name=name, handler=_nothing).name == name


@pytest.mark.parametrize("name", ["", "x" * 101, "a b", "{a}", "a\n", "ä", "a/b"])
def test_a_name_that_would_spoil_a_key_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="flow's name"):
        Flow(name=name, handler=_nothing)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("batch_size", 0),
        ("batch_size", MAX_BATCH_SIZE + 1),
        ("lease_seconds", 0),
        ("lease_seconds", math.nan),
        ("lease_seconds", math.inf),
        ("sweep_seconds", 1e12),
        ("sweep_seconds", -1),
        ("lookahead_seconds", 0),
        ("max_runtime_seconds", 0),
        ("max_failures", 0),
        ("max_deliveries", 0),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(ValueError, match=setting):
        Flow(name="a", handler=_nothing, **settings)


@pytest.mark.parametrize("delay", [math.nan, math.inf, -math.inf, 1e300, 2**53])
def test_a_retry_after_no_number_of_milliseconds_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="delay_ms"):
        Retry(delay)


def test_a_task_whose_function_returns_nothing_is_done() -> None:
    seen: list[str] = []
    assert one_at_a_time(lambda task: seen.append(task.id))(TASKS) == {}
    assert seen == ["a", "b", "c"]


def test_a_function_for_one_task_may_return_its_outcome() -> None:
    outcome = Retry(5)
    handler = one_at_a_time(lambda task: outcome if task.id == "b" else None)
    assert handler(TASKS) == {"b": outcome}


def test_an_errors_message_is_its_docstring_and_the_detail() -> None:
    assert str(FlowNotFound("x:y")) == "No flows were found there. x:y"
    assert str(Unavailable()) == "Something the handler needs does not answer."
    assert LeaseLost(["a", "b"]).ids == ("a", "b")
    assert str(LeaseLost(["a", "b"])).endswith("nothing was written for them. a, b")
    assert str(Retry(20)) == "again in 20 ms"


def test_a_dead_letter_may_be_made_of_an_exception() -> None:
    error = ValueError("no such customer")
    letter = DeadLetter(error)
    assert (letter.reason, letter.__cause__) == ("no such customer", error)
