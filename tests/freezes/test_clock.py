"""A jump of another clock is told from drift, from slow answers and from this machine's own sleep."""

import pytest

from orders.features.freezes.clock import DRIFT, ClockWatch, Look

JUMP_MS = 2000.0
MINUTES_MS = 600_000.0


def look(own_ms: float, ahead_ms: float = 0.0, took_ms: float = 1.0) -> Look:
    return Look(own_ms + ahead_ms + took_ms / 2, own_ms, own_ms + took_ms)


@pytest.fixture
def watch() -> ClockWatch:
    watch = ClockWatch(JUMP_MS)
    watch.accept(look(0, 5e6))
    return watch


@pytest.mark.parametrize(
    ("second", "jumped"),
    [
        (look(1000, 5e6), False),
        (look(1000, 5e6 + JUMP_MS), False),
        (look(1000, 5e6 + JUMP_MS + 10), True),
        (look(1000, 5e6 - JUMP_MS - 10), True),
        (look(1000, 5e6 + MINUTES_MS), True),
        (look(1000, 5e6, took_ms=10_000), False),
        (look(MINUTES_MS, 5e6 + JUMP_MS + 0.9 * DRIFT * MINUTES_MS), False),
    ],
)
def test_a_jump_is_more_than_drift_and_delay(
    watch: ClockWatch,
    second: Look,
    jumped: bool,  # noqa: FBT001  pytest's
) -> None:
    assert bool(watch.jump_ms(second)) == jumped


def test_a_jump_says_which_way_and_how_far(watch: ClockWatch) -> None:
    assert watch.jump_ms(look(1000, 5e6 + MINUTES_MS)) == pytest.approx(MINUTES_MS, abs=5)
    assert watch.jump_ms(look(1000, 5e6 - MINUTES_MS)) == pytest.approx(-MINUTES_MS, abs=5)


def test_the_latest_time_moves_on_with_this_machine(watch: ClockWatch) -> None:
    assert watch.latest_ms(1000) == pytest.approx(5e6 + 1000, abs=3)
    assert ClockWatch(JUMP_MS).latest_ms(1000) is None


def test_a_slow_look_says_too_little_to_go_by(watch: ClockWatch) -> None:
    watch.accept(look(1000, 5e6 + 500, took_ms=5000))
    assert watch.latest_ms(1000) == pytest.approx(5e6 + 1000, abs=3)


def test_a_jump_is_noticed_however_slow_the_looks_are() -> None:
    """As on a machine so busy that each takes seconds: the first of them is better than none."""
    watch = ClockWatch(JUMP_MS)
    for n in range(3):
        watch.accept(look(5000 * n, 5e6, took_ms=3000))
    assert watch.latest_ms(15_000) == pytest.approx(5e6 + 15_000, abs=3100)
    assert watch.jump_ms(look(15_000, 5e6 + MINUTES_MS, took_ms=3000)) > 0
    assert watch.jump_ms(look(15_000, 5e6 - MINUTES_MS, took_ms=3000)) < 0
