"""How many requests a caller may send: a token bucket for each, in this process's memory.

A bucket here costs microseconds and cannot fail, so that a request waits for nothing and a limit
does not depend on Redis. The price: a limit holds in one process, which is what has to be
protected. On N processes a key may send N times as much.
"""

import math
from collections.abc import Callable
from ipaddress import IPv6Network
from typing import TypeVar

from throttled import Throttled, per_sec
from throttled.store import MemoryStore

from orders.errors import NotAuthenticated, TooManyRequests

T = TypeVar("T")
#: How many callers are tracked; beyond that, those who came longest ago are forgotten.
MOST_CALLERS = 10_000
#: Wrong keys and signatures that one address may send. Each costs a query.
WRONG_KEYS_PER_SECOND, WRONG_KEYS_BURST = 10, 100


class RateLimits:
    """Buckets by API key, and by the address that wrong keys come from."""

    def __init__(self, per_second: int, burst: int) -> None:
        self._keys = _buckets(per_second, burst)
        self._wrong_keys = _buckets(WRONG_KEYS_PER_SECOND, WRONG_KEYS_BURST)

    def admit(self, key_id: str) -> None:
        """Count a request with a key. Raises TooManyRequests."""
        result = self._keys.limit(key_id)
        if result.limited:
            raise TooManyRequests(retry_after=math.ceil(result.state.retry_after))

    def checking(
        self, address: str | None, at: str, known: Callable[[], bool], check: Callable[[], T]
    ) -> T:
        """Check a stranger's credential: counts one that is wrong. Raises as `admit_stranger` does."""
        self.admit_stranger(address, at, unless=known)
        try:
            return check()
        except NotAuthenticated:
            self.count_stranger(address, at)
            raise

    def admit_stranger(
        self, address: str | None, at: str = "", *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Raises TooManyRequests when too many wrong keys or signatures came from this address,
        ``unless`` the credential exists.
        """
        if self._wrong_keys.peek(_network(address) + at).remaining < 1 and not unless():
            raise TooManyRequests(
                "Too many wrong keys or signatures came from your address.", retry_after=1
            )

    def count_stranger(self, address: str | None, at: str = "") -> None:
        """Count a wrong key or signature against the address that it came from, for one endpoint if
        ``at`` names it.
        """
        self._wrong_keys.limit(_network(address) + at)


def _buckets(per_second: int, burst: int) -> Throttled:
    store = MemoryStore(options={"MAX_SIZE": MOST_CALLERS})
    # Without a timeout: a limit is there to prevent waiting threads.
    return Throttled(using="gcra", quota=per_sec(per_second, burst), store=store, timeout=-1)


def _network(address: str | None) -> str:
    """An address, or the network of an IPv6 address: its user has all 2^64 addresses in it."""
    # A socket for both families writes IPv4 addresses like this, all of which are in one network.
    address = (address or "unknown").removeprefix("::ffff:")
    try:
        return str(IPv6Network(f"{address}/64", strict=False))
    except ValueError:
        return address
