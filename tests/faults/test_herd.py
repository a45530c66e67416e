"""A herd of checks that are due at once delays neither Redis nor what becomes due meanwhile."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.processes import wait_until
from orders.db.ids import new_id
from tests.kit.clock import bound
from tests.kit.site import Build, Site
from tests.kit.workers import frozen

pytestmark = pytest.mark.slow

#: A million when the fault tests are repeated.
HERD = 1_000_000 if "REPEAT" in os.environ else 100_000
#: Longer than any script may take, p99, in microseconds.
SCRIPT_US = 10_000
#: A worker holds one batch at a time, so the herd does not show in its memory.
GROWTH_MB = 32
#: How late an order may be cancelled that becomes due amid the herd.
FRESH_SECONDS = 1


@pytest.mark.timeout(0)
def test_a_herd_that_is_due_at_once_starves_nobody(build: Build) -> None:
    site = build()
    now_ms = round(time.time() * 1000)
    with redis.Redis.from_url(site.valkey.url) as client:
        for slice_ in slices(HERD):
            # Of orders that do not exist: each costs a claim, a look into SQL, and an ack.
            herd = {new_id(): now_ms - 1000 for _ in range(slice_)}
            client.zadd("{order-timeout}:scheduled", herd)
        client.config_resetstat()
    worker = site.start_worker()
    wait_until(lambda: site.queue.stats().leased, "the worker to begin")
    memory_mb = peak_mb(worker.pid)

    with frozen(worker):
        ids = site.place(50, 0, 1)
        assert site.queue.stats().due > HERD / 2, "the orders were to become due amid the herd"
    wait_until(lambda: site.unpaid() == 0, "the orders to be cancelled", seconds=HERD / 500)
    assert site.queue.stats().due > HERD / 10, "they waited for the herd"

    def ended() -> bool:
        stats = site.queue.stats()
        return stats.scheduled == stats.leased == 0

    wait_until(ended, "the herd to be gone", seconds=HERD / 500)

    for order in site.history().orders.values():
        late = order.cancelled_at.timestamp() - order.expires_at.timestamp()
        assert late <= bound(FRESH_SECONDS)
    assert site.latest_ms() >= 0
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    assert site.batches() >= HERD / 500
    assert peak_mb(worker.pid) - memory_mb < GROWTH_MB
    assert script_p99_us(site) <= bound(SCRIPT_US)


def slices(count: int, size: int = 10_000) -> Iterator[int]:
    yield from [size] * (count // size)


def script_p99_us(site: Site) -> float:
    """How long one in a hundred script calls held the server up at least, by its own count.

    The server keeps a histogram of the time that each call of a command took. Everything that
    the engine does is one script, so EVALSHA is all of it.
    """
    client: Any = redis.Redis.from_url(site.valkey.url)
    with client:
        found = client.info("latencystats")["latency_percentiles_usec_evalsha"]
    return float(found["p99"])


def peak_mb(pid: int) -> float:
    """The most memory that a process ever had."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("only Linux tells how much memory another process has had")
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return float(line.split()[1]) / 1024
