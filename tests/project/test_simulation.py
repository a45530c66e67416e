"""benchmarks/simulate.py: the same for the same seed, true to what was measured, and what docs/capacity.md publishes."""

from importlib import import_module
from typing import Any

import pytest

from benchmarks.report import load

SEEDS = (1, 2, 3)
BURST = "1,000,000 due in one second"
#: The machine's own pauses decide these percentiles. They are not simulated.
TAILS = ("late p90", "late p99")


@pytest.fixture(scope="module")
def simulate() -> Any:
    pytest.importorskip("simpy")  # `make test-all` installs it
    return import_module("benchmarks.simulate")


def test_only_the_seed_decides_what_is_simulated(simulate: Any) -> None:
    first, again, other = (
        simulate.troubled(BURST, "this machine", seed).late for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_measured_is_reproduced_within_a_fifth(simulate: Any, seed: int) -> None:
    rows = simulate.reproduce(seed)
    held = {row: pair for row, pair in rows.items() if not any(tail in row for tail in TAILS)}
    assert len(held) == len(simulate.CREWS) + len(simulate.RATES)
    for row, (measured, simulated) in held.items():
        assert simulated == pytest.approx(measured, rel=0.2), row


def test_what_is_published_is_what_is_simulated(simulate: Any) -> None:
    published = load("reproduced").figures
    for row, pair in simulate.reproduce(1).items():
        assert [published[row]["measured"][0], published[row]["simulated"][0]] == pytest.approx(
            pair
        )
    for trouble in simulate.TROUBLES:
        for cell in simulate.CELLS:
            latest_ms = simulate.troubled(trouble, cell, 1).percentile(100)
            [latest_s] = load("simulated").figures[f"{trouble}: {cell}"]["latest_s"]
            assert latest_ms == pytest.approx(1000 * latest_s)


def test_orders_are_simulated_3_s_late_at_most_without_redis(simulate: Any) -> None:
    for cell in simulate.CELLS:
        assert simulate.troubled("Redis away for 30 s", cell, 1).percentile(100) < 3000


def test_every_order_that_is_due_is_cancelled_once(simulate: Any) -> None:
    for trouble in simulate.TROUBLES:
        late = simulate.troubled(trouble, "this machine", 1).late
        due = 500 * simulate.SECONDS + simulate.HERD * (trouble == BURST)
        assert sum(count for _, _, count in late) == due
        assert min(ms for _, ms, _ in late) > 0
