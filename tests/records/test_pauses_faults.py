"""A pause holds until somebody ends it, whatever happens to Redis and to workers."""

from collections.abc import Callable

import pytest

from devtools import processes
from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.db.database import reading
from tests.kit.length import quick_first
from tests.kit.site import Build, Site

ORDERS = 20
#: Times that the table of pauses is read, or more: over a second for each worker.
LOOKS = 4
LOOKS_SO_FAR = """
SELECT pg_stat_force_next_flush(), seq_scan + coalesce(idx_scan, 0)
FROM pg_stat_user_tables WHERE relname = 'queue_pauses'
"""


def lost(valkey: Valkey) -> None:
    valkey.kill()


def flushed(valkey: Valkey) -> None:
    valkey.kill()
    valkey.start()


def pause(site: Site, verb: str = "pause") -> None:
    reason = ["--reason", "the backup is being restored"] if verb == "pause" else []
    processes.run(["worker", verb, *reason, "--flows", "orders.timeouts:flows"], site.env)


def looks(site: Site) -> int:
    with reading(site.services.engine) as connection:
        return int(connection.exec_driver_sql(LOOKS_SO_FAR).one()[1])


@pytest.mark.slow
@pytest.mark.parametrize("fault", quick_first([lost, flushed]))
@pytest.mark.parametrize("given", quick_first(["before", "after"]))
def test_nothing_is_cancelled_until_the_resume(
    build: Build, fault: Callable[[Valkey], None], given: str
) -> None:
    site = build()
    ids = site.place(ORDERS, 0, 0)
    if given == "before":
        pause(site)
    fault(site.valkey)
    if given == "after":
        pause(site)
    for worker in (site.start_worker(), site.start_worker()):
        wait_until(lambda: '"paused"' in site.log(worker), "the worker to learn of it")  # noqa: B023
    enough = looks(site) + LOOKS
    wait_until(lambda: looks(site) >= enough, "workers to look again and again")
    assert site.unpaid() == ORDERS
    if fault is lost:
        site.valkey.start()
    pause(site, "resume")
    site.wait_until_drained()
    site.assert_each_was_cancelled_once(ids)
