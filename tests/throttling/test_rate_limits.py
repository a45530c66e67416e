"""Token buckets by key and by address."""

import pytest
import throttled.utils

from orders.errors import TooManyRequests
from orders.features.throttling import rate_limits
from orders.features.throttling.rate_limits import RateLimits

MOST = rate_limits.WRONG_KEYS_BURST


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The library's, standing still until it is moved."""
    clock = Clock()
    monkeypatch.setattr(throttled.utils, "now_mono_f", clock)
    return clock


def test_a_key_has_a_burst_and_then_its_rate(clock: Clock) -> None:
    limits = RateLimits(2, burst=3)
    for _ in range(3):
        limits.admit("a")
    with pytest.raises(TooManyRequests) as refused:
        limits.admit("a")
    assert refused.value.facts == {"retry_after": 1}
    limits.admit("b")
    clock.now += 0.5
    limits.admit("a")
    with pytest.raises(TooManyRequests):
        limits.admit("a")
    clock.now += 60
    for _ in range(3):
        limits.admit("a")
    with pytest.raises(TooManyRequests):
        limits.admit("a")


def test_an_address_may_send_so_many_wrong_keys(clock: Clock) -> None:
    limits = RateLimits(2, burst=3)
    for _ in range(MOST - 2):
        limits.count_stranger("192.0.2.1")
    limits.admit_stranger("192.0.2.1")
    for _ in range(2):
        limits.count_stranger("192.0.2.1")
    with pytest.raises(TooManyRequests) as refused:
        limits.admit_stranger("192.0.2.1")
    assert refused.value.facts == {"retry_after": 1}
    limits.admit_stranger("192.0.2.2")
    clock.now += 1
    limits.admit_stranger("192.0.2.1")


def test_an_ipv6_address_counts_with_its_network(clock: Clock) -> None:  # noqa: ARG001
    limits = RateLimits(2, burst=3)
    for host in range(MOST):
        limits.count_stranger(f"2001:db8:0:1::{host:x}")
    with pytest.raises(TooManyRequests):
        limits.admit_stranger("2001:db8:0:1:ffff::")
    limits.admit_stranger("2001:db8:0:2::1")


def test_ipv4_addresses_written_as_ipv6_count_by_themselves(clock: Clock) -> None:  # noqa: ARG001
    limits = RateLimits(2, burst=3)
    for _ in range(MOST):
        limits.count_stranger("::ffff:192.0.2.1")
    limits.admit_stranger("::ffff:192.0.2.2")
    with pytest.raises(TooManyRequests):
        limits.admit_stranger("192.0.2.1")


@pytest.mark.parametrize("address", [None, "", "no address", "not:an:address", "fe80::1%eth0"])
def test_whatever_an_address_is_it_is_counted(clock: Clock, address: str | None) -> None:  # noqa: ARG001
    limits = RateLimits(2, burst=3)
    for _ in range(MOST):
        limits.count_stranger(address)
    with pytest.raises(TooManyRequests):
        limits.admit_stranger(address)
