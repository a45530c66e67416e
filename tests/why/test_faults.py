"""Who holds a row is said soon, by a real worker."""

import time

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.db.tables import unpaid_orders
from orders.features.why.locked import LONG_MS, LOOK_SECONDS
from tests.kit.clock import bound
from tests.kit.site import Build
from worker.runtime.ticks import TICK_SECONDS


@pytest.mark.slow
def test_a_locked_row_is_named_within_five_seconds(build: Build) -> None:
    site = build()
    worker = site.start_worker()
    due_at = time.monotonic() + 3
    site.place(1, 3, 3)
    with site.services.engine.begin() as stranger:
        assert len(stranger.execute(sa.select(unpaid_orders).with_for_update()).all()) == 1
        wait_until(lambda: '"row locked"' in site.log(worker), "its holder to be named")
        assert time.monotonic() - due_at <= bound(5)
    site.wait_until_all_are_cancelled()
    assert LONG_MS / 1000 + LOOK_SECONDS + TICK_SECONDS < 5, "on any machine"
