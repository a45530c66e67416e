"""Nobody is cancelled because payers cannot reach us, or because a database's clock jumped."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import sqlalchemy as sa

from devtools.postgres import Postgres
from devtools.processes import free_port, wait_until
from orders.db.tables import unpaid_orders
from orders.features.freezes.domain import FreezeState
from orders.features.freezes.service import Freezes
from orders.features.freezes.signs import CLOCK, DOOR
from tests.kit.moments import now
from tests.kit.site import Build, Site

ORDERS, PAYERS = 200, 60
#: Debian's package faketime.
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")

pytestmark = pytest.mark.slow


def held_by(site: Site) -> list[tuple[str, FreezeState]]:
    return [(freeze.opened_by, freeze.state) for freeze in site.services[Freezes].in_force()]


def overdue(site: Site) -> int:
    with site.services.engine.connect() as connection:
        late = unpaid_orders.c.expires_at <= now()
        return connection.execute(sa.select(sa.func.count()).where(late)).scalar_one()


@pytest.mark.parametrize("redis", ["answers", "is gone"])
def test_nobody_is_cancelled_while_our_door_is_shut(build: Build, redis: str) -> None:
    """The API is dead across the deadlines of 200 orders, as soon as that can be known; then 60 of them are paid."""
    site = build(DOOR_FREEZE_AFTER_SECONDS="")
    port = free_port()
    api = site.start_api(port)
    site.start_worker(FLOWS="freezes")
    site.start_worker(FLOWS="freezes")
    wait_until(lambda: signs(site) > 0, "the API to sign")
    ids = site.place(ORDERS, 10, 20)
    if redis == "is gone":
        site.valkey.kill()
    api.kill()
    wait_until(lambda: held_by(site) == [(DOOR, FreezeState.OPEN)], "the door to be found shut")
    wait_until(lambda: overdue(site) == ORDERS, "all deadlines to pass")
    assert site.unpaid() == ORDERS
    site.start_api(port)
    wait_until(lambda: held_by(site) == [], "everybody to get the time back")
    assert overdue(site) == 0
    key = site.services.clients.create_key("site", ["payments"])
    assert {pay(port, key, order_id) for order_id in ids[:PAYERS]} == {201}
    assert site.unpaid() == ORDERS - PAYERS
    [freeze] = site.services[Freezes].page(page_size=10)
    assert (freeze.opened_by, freeze.thawed_by, freeze.given_back) == (DOOR, DOOR, ORDERS)


def pay(port: int, key: str, order_id: str) -> int:
    body = {"provider": "bank", "reference": order_id, "amount_minor": 300, "currency": "EUR"}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/orders/{order_id}/payments"
    request = Request(url, json.dumps(body).encode(), headers)
    with urlopen(request, timeout=60) as response:  # noqa: S310  our own
        return int(response.status)


def signs(site: Site) -> int:
    with site.services.engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM api_signs").scalar_one())


# -- a clock that jumps ------------------------------------------------------------------------


class JumpyServer:
    """A database server whose clock the test sets."""

    def __init__(self) -> None:
        self.server = Postgres()
        # In the server's own folder: another run of pytest closes all of pytest's to the server's user.
        self._offset = self.server.folder / "clock"
        self._write("+0")
        self.server._as["env"] |= {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, offset: str) -> None:
        self._write(offset)
        with self.server._connect() as connection:
            [ahead] = connection.execute(
                "SELECT extract(epoch FROM clock_timestamp())::float8 - %s", [time.time()]
            ).fetchone() or [None]
        assert ahead == pytest.approx(int(offset), abs=60), "the server's clock was to jump"

    def _write(self, offset: str) -> None:
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(offset)
        fresh.chmod(0o644)
        fresh.replace(self._offset)


@pytest.fixture
def jumpy() -> Iterator[JumpyServer]:
    if not FAKETIME.exists():
        pytest.skip("apt-get install faketime: without it no server's clock can be moved")
    jumpy = JumpyServer()
    try:
        jumpy.server.start()
        yield jumpy
    finally:
        jumpy.server.remove()


@pytest.mark.parametrize("offset", ["+600", "-600"])
def test_nobody_is_cancelled_early_when_the_clock_jumps(
    jumpy: JumpyServer, tmp_path: Path, offset: str
) -> None:
    """As on a standby that is promoted: ten minutes ahead, or behind."""
    jumpy.server.execute("CREATE DATABASE jumpy")
    site = Site(tmp_path, jumpy.server.url("jumpy"), {})
    try:
        for _ in range(2):
            site.start_worker(FLOWS="freezes")
        logs = [partial(site.log, each) for each in site._processes]
        wait_until(lambda: all('"available"' in log() for log in logs), "both workers")
        site.place(1, 1, 1)
        wait_until(lambda: site.unpaid() == 0, "a cancellation, before which a worker looks")
        assert not any("tick" in log() for log in logs)
        ids = site.place(40, 300, 500)
        jumpy.jump(offset)
        wait_until(lambda: (CLOCK, FreezeState.OPEN) in held_by(site), "the jump to be noticed")
        if offset.startswith("+"):
            assert overdue(site) == len(ids), "by the clock that is wrong"
        once = site.services[Freezes].page(page_size=10)
        jumpy.jump("+0")
        wait_until(lambda: held_by(site) == [], "the clock to be believed again", seconds=120)
        assert site.unpaid() == len(ids)
        assert {freeze.opened_by for freeze in once} == {CLOCK}
    finally:
        site.close()
