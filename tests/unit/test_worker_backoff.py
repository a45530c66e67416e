"""How long to wait before the next attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import Backoff

CHANCES = st.floats(0, 1, exclude_max=True)


@given(
    base=st.floats(0.001, 1000),
    times=st.floats(1, 1000),
    attempt=st.integers(1, 10_000),
    chance=CHANCES,
)
def test_a_delay_is_between_half_and_all_of_its_doubled_base_and_never_over_the_cap(
    base: float, times: float, attempt: int, chance: float
) -> None:
    backoff = Backoff(base_seconds=base, cap_seconds=base * times)
    ceiling_ms = 1000 * base * min(times, 2.0 ** min(attempt - 1, 62))
    delay = backoff.delay_ms(attempt, lambda: chance)
    assert max(1, ceiling_ms / 2 - 1) <= delay <= max(1, ceiling_ms + 1)


@given(attempt=st.integers(1, 100), chance=CHANCES)
def test_a_later_attempt_never_waits_less_by_the_same_chance(attempt: int, chance: float) -> None:
    backoff = Backoff()
    assert backoff.delay_ms(attempt, lambda: chance) <= backoff.delay_ms(
        attempt + 1, lambda: chance
    )


def test_the_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base_seconds=1, cap_seconds=10)
    assert [backoff.delay_ms(n, lambda: 1.0) for n in range(1, 6)] == [
        1000,
        2000,
        4000,
        8000,
        10_000,
    ]
    assert [backoff.delay_ms(n, lambda: 0.0) for n in range(1, 4)] == [500, 1000, 2000]


def test_tasks_that_failed_together_do_not_come_back_together() -> None:
    assert len({Backoff(base_seconds=60).delay_ms(1) for _ in range(100)}) > 50


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (-1, 1), (2, 1), (float("nan"), 1)])
def test_a_backoff_that_makes_no_sense_is_refused(base: float, cap: float) -> None:
    with pytest.raises(ValueError, match="backoff needs"):
        Backoff(base_seconds=base, cap_seconds=cap)
