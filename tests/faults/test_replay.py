"""What `worker replay` makes of the logs of workers that die and freeze."""

import re

import pytest

from tests.faults.conftest import Build
from tests.faults.failpoints import MOMENTS
from tests.faults.site import HURRIED, Site
from tests.faults.test_workers_die import see_it_die
from tests.faults.test_zombies import start_and_see_it_freeze, wake
from worker.cli.parser import main

LOGGED = {**HURRIED, "LOG_LEVEL": "debug"}


def replayed(site: Site, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    status = main(["replay", *options, *map(str, sorted(site.folder.glob("worker-*.log")))])
    return status, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_workers_orders_were_handled_as_they_must_be(
    build: Build, moment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site = build(**LOGGED)
    ids = site.place(5, 0, 0)
    see_it_die(site.start_worker(ready=False, FAILPOINT=moment))
    site.start_worker()
    site.wait_until_drained()
    status, told = replayed(site, capsys, "--task", ids[0])
    assert status == 0, told
    assert told.count(f" claim {ids[0]} attempt=") == 2
    assert "attempt=2" in told
    assert replayed(site, capsys)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["after_claim", "after_commit"])
def test_a_zombies_lines_are_allowed_unless_it_wrote(
    build: Build, moment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site = build(**LOGGED)
    site.place(20, 0, 0)
    zombie = start_and_see_it_freeze(site, moment)
    other = site.start_worker()
    site.wait_until_drained()
    wake(site, zombie)
    assert zombie.stop() == other.stop() == 0
    status, told = replayed(site, capsys)
    assert status == 0, told
    log = site.folder / "worker-0.log"  # that of the zombie
    log.write_text(re.sub(r'"refused": \[".*?\]', '"refused": []', log.read_text()))
    status, told = replayed(site, capsys)
    assert status == 1
    assert "must not have happened: the token" in told
