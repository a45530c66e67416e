"""A worker that was frozen for longer than its lease changes nothing when it goes on."""

import os
import signal

import pytest

from devtools.processes import Process, wait_until
from tests.kit.failpoints import REPEAT
from tests.kit.length import quick_first
from tests.kit.site import HURRIED, Build, Site

#: With how many orders the worker freezes.
ORDERS = 20


def start_and_see_it_freeze(site: Site, moment: str) -> Process:
    zombie = site.start_worker(ready=False, FAILPOINT=f"{moment}:stop")
    stopped = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
    wait_until(lambda: os.waitid(os.P_PID, zombie.pid, stopped), "the worker to freeze")
    assert site.queue.stats().leased == ORDERS
    return zombie


def wake(site: Site, zombie: Process) -> None:
    """Continue it, and wait until it has found out: by settling, or before, by renewing its lease."""
    zombie.signal(signal.SIGCONT)
    lost = f'"lease lost, nothing written", "queue": "order-timeout", "tasks": {ORDERS},'
    wait_until(lambda: lost in site.log(zombie), "the worker to find its lease lost")


def finish(site: Site, zombie: Process, ids: list[str]) -> None:
    """The worker works on, and each order was cancelled once."""
    ids += site.wait_for_claims()
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    site.assert_the_queue_is_empty()
    assert zombie.stop() == 0


@pytest.mark.parametrize("moment", quick_first(["after_commit", "after_claim"] * REPEAT))
def test_a_zombie_changes_nothing_of_what_another_has_settled(build: Build, moment: str) -> None:
    site = build(**HURRIED)
    ids = site.place(ORDERS, 0, 0)
    zombie = start_and_see_it_freeze(site, moment)
    other = site.start_worker()
    site.wait_until_drained()
    other.stop()
    before = site.everything()

    wake(site, zombie)

    # A sweep that was frozen too may put a check back that it read of before; it comes to nothing.
    wait_until(lambda: site.everything() == before, "nothing to have changed")
    finish(site, zombie, ids)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["in_delete"] * REPEAT)
def test_a_zombie_in_the_middle_of_its_statement_keeps_no_lock(build: Build, moment: str) -> None:
    site = build(**HURRIED)
    ids = site.place(ORDERS, 0, 0)
    zombie = start_and_see_it_freeze(site, moment)
    site.wait_until_all_are_cancelled()  # the server needs nobody to end a statement
    other = site.start_worker()
    site.wait_until_drained()
    other.stop()
    before = site.everything()

    wake(site, zombie)

    # A sweep that was frozen too may put a check back that it read of before; it comes to nothing.
    wait_until(lambda: site.everything() == before, "nothing to have changed")
    finish(site, zombie, ids)
