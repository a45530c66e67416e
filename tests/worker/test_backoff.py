"""How long to wait before the next attempt."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import Backoff, BackoffFunction, Delays, Flow

CHANCES = st.floats(0, 1, exclude_max=True)


@given(
    base=st.floats(0.001, 1000),
    times=st.floats(1, 1000),
    attempt=st.integers(1, 10_000),
    chance=CHANCES,
)
def test_a_delay_is_half_to_all_of_its_doubled_base_capped(
    base: float, times: float, attempt: int, chance: float
) -> None:
    backoff = Backoff(base_seconds=base, cap_seconds=base * times)
    ceiling = base * min(times, 2.0 ** min(attempt - 1, 62))
    seconds = backoff(attempt, lambda: chance)
    assert max(0.001, ceiling / 2 * 0.999) <= seconds <= max(0.001, ceiling * 1.001)


@given(attempt=st.integers(1, 100), chance=CHANCES)
def test_a_later_attempt_never_waits_less_by_the_same_chance(attempt: int, chance: float) -> None:
    backoff = Backoff()
    assert backoff(attempt, lambda: chance) <= backoff(attempt + 1, lambda: chance)


def test_the_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base_seconds=1, cap_seconds=10)
    assert [backoff(n, lambda: 1.0) for n in range(1, 6)] == [1, 2, 4, 8, 10]
    assert [backoff(n, lambda: 0.0) for n in range(1, 4)] == [0.5, 1, 2]


def test_tasks_that_failed_together_do_not_come_back_together() -> None:
    assert len({Backoff(base_seconds=60)(1) for _ in range(100)}) > 50


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (-1, 1), (2, 1), (math.nan, 1), (1, math.nan)])
def test_a_backoff_that_makes_no_sense_is_refused(base: float, cap: float) -> None:
    with pytest.raises(ValueError, match="backoff needs"):
        Backoff(base_seconds=base, cap_seconds=cap)


def test_backoffs_of_the_same_settings_are_the_same() -> None:
    assert Backoff(2, 5) == Backoff(base_seconds=2, cap_seconds=5) != Backoff(2, 6)


# -- delays --------------------------------------------------------------------------------


def test_delays_follow_each_other_and_the_last_one_repeats() -> None:
    delays = Delays(15, 15, 30, 180, 600)
    assert [delays(n) for n in range(1, 8)] == [15, 15, 30, 180, 600, 600, 600]


def test_a_delay_may_be_zero_and_may_be_the_only_one() -> None:
    assert [Delays(0)(n) for n in (1, 2)] == [0, 0]


@pytest.mark.parametrize("seconds", [[], [-1], [1, -0.001], [math.nan], [1, math.inf]])
def test_delays_that_make_no_sense_are_refused(seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="Delays needs one or more seconds"):
        Delays(*seconds)


def test_delays_say_what_they_are() -> None:
    assert repr(Delays(1, 2.5)) == "Delays(1, 2.5)"
    assert repr(Delays(7)) == "Delays(7)"


# -- a flow's ------------------------------------------------------------------------------


@pytest.mark.parametrize("backoff", [Backoff(), Delays(1), lambda n: n * 2.0, math.sqrt])
def test_any_callable_that_takes_a_count_is_a_flows_backoff(backoff: BackoffFunction) -> None:
    flow = Flow(name="a", handler=lambda _: None, backoff=backoff)
    assert flow.backoff(4) >= 0


def test_by_default_failing_tasks_are_tried_for_1_to_3_hours() -> None:
    flow = Flow(name="a", handler=lambda _: None)
    backoff = flow.backoff
    assert isinstance(backoff, Backoff)
    failures = range(1, flow.max_failures)  # the last one makes it a dead letter
    assert sum(backoff(n, lambda: 0.0) for n in failures) > 3600
    assert sum(backoff(n, lambda: 1.0) for n in failures) < 3 * 3600
