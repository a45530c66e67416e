"""What an application writes: flows, outcomes, and the adaptor for one task at a time."""

import math
from decimal import Decimal
from typing import Any

import pytest

from worker import (
    DeadLetter,
    Due,
    Failed,
    Flow,
    FlowNotFound,
    LeaseLost,
    Outcome,
    Reschedule,
    Retry,
    Task,
    Unavailable,
    one_at_a_time,
)
from worker.flow import MAX_BATCH_SIZE, MAX_DELAY_MS, MAX_SECONDS, MIN_DELIVERIES

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
        ("max_deliveries", MIN_DELIVERIES - 1),
        ("threads", 0),
        ("threads", -1),
        ("without_redis", "handel"),
        ("without_redis", None),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(ValueError, match=setting):
        Flow(name="a", handler=_nothing, **settings)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("batch_size", 1),
        ("batch_size", MAX_BATCH_SIZE),
        ("lease_seconds", MAX_SECONDS),
        ("max_failures", 1),
        ("max_deliveries", MIN_DELIVERIES),
        ("threads", None),
        ("threads", 1),
        ("without_redis", "wait"),
    ],
)
def test_a_setting_at_its_limit_is_accepted(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {setting: value}
    assert getattr(Flow(name="a", handler=_nothing, **settings), setting) == value


def test_without_a_sweep_nothing_is_handled_without_redis() -> None:
    with pytest.raises(ValueError, match="needs a sweep"):
        Flow(name="a", handler=_nothing, without_redis="handle")
    Flow(name="a", handler=_nothing, sweep=lambda *_: [], without_redis="handle")


def test_a_flow_says_nothing_of_its_functions() -> None:
    flow = Flow(name="a", handler=_nothing, sweep=lambda *_: [], probe=lambda: None)
    assert "function" not in repr(flow)


@pytest.mark.parametrize("delay", [math.nan, math.inf, -math.inf, 1e300, 2**53])
@pytest.mark.parametrize("kind", [Retry, Reschedule])
def test_a_time_that_is_no_number_of_milliseconds_is_refused(
    kind: type[Retry | Reschedule], delay: float
) -> None:
    with pytest.raises(ValueError, match="delay_ms"):
        kind(delay)


@pytest.mark.parametrize("delay", [0, -5, 0.5, MAX_DELAY_MS, -MAX_DELAY_MS])
@pytest.mark.parametrize("kind", [Retry, Reschedule])
def test_any_other_time_is_kept_as_it_is(kind: type[Retry | Reschedule], delay: float) -> None:
    assert kind(delay).delay_ms == delay


def test_a_retry_is_no_failure_unless_it_says_so() -> None:
    assert not Retry(5).counted
    assert Retry(5, counted=True).counted


# -- tasks ---------------------------------------------------------------------------------


def test_all_attempts_of_an_appointment_share_its_own_key() -> None:
    task = Task("a", b"x", due_at_ms=7, appointment_ms=7)
    again = task._replace(attempt=5, failures=3, deliveries=1, due_at_ms=99, token="t")  # noqa: S106
    new = task._replace(appointment_ms=8)
    other = task._replace(id="b")
    assert task.idempotency_key == again.idempotency_key == "a:7"
    assert len({each.idempotency_key for each in (task, new, other)}) == 3


def test_a_record_of_a_task_has_no_payload_unless_it_says_so() -> None:
    assert Due("a", -5).payload == b""
    assert Due("a", -5, b"tea") == ("a", -5, b"tea")


# -- one task at a time --------------------------------------------------------------------


def test_a_flow_knows_whether_its_handler_gets_each_task_alone() -> None:
    assert Flow(name="a", handler=one_at_a_time(lambda _: None)).one_at_a_time
    assert not Flow(name="a", handler=_nothing).one_at_a_time


def test_a_task_whose_function_returns_nothing_is_done() -> None:
    seen: list[str] = []
    assert one_at_a_time(lambda task: seen.append(task.id))(TASKS) == {}
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize(
    "outcome", [Retry(5), Reschedule(5), DeadLetter("bad"), Failed("no such customer")]
)
def test_a_function_for_one_task_may_return_its_outcome(outcome: Outcome) -> None:
    handler = one_at_a_time(lambda task: outcome if task.id == "b" else None)
    assert handler(TASKS) == {"b": outcome}


# -- what errors say -----------------------------------------------------------------------


def test_an_errors_message_is_its_docstring_and_the_detail() -> None:
    assert str(FlowNotFound("x:y")) == "No flows were found there. x:y"
    assert str(Unavailable()) == "Something the handler needs does not answer."
    assert LeaseLost(["a", "b"]).ids == ("a", "b")
    assert str(LeaseLost(["a", "b"])).endswith("nothing was written for them. a, b")
    assert str(Retry(20)) == "again in 20 ms"
    assert str(Reschedule(20)) == "done, and due again in 20 ms"
    assert str(Failed("no such customer")) == "RuntimeError: no such customer"
    assert str(Failed(KeyError("x"))) == "KeyError: 'x'"


def test_a_dead_letter_may_be_made_of_an_exception() -> None:
    error = ValueError("no such customer")
    letter = DeadLetter(error)
    assert (letter.reason, letter.__cause__) == ("no such customer", error)


@pytest.mark.parametrize("outcome", [Retry, Reschedule])
def test_a_delay_may_be_any_number(outcome: type[Retry | Reschedule]) -> None:
    delay_ms: Any = Decimal("1500.5")  # as databases give it
    assert outcome(delay_ms).delay_ms + 0.25 == 1500.75
