"""A flow may be called about once a second, whatever else its worker does."""

import time

from structlog.testing import capture_logs

from devtools.processes import wait_until
from devtools.valkey import Valkey
from tests.kit.workers import running
from worker import Flow, Worker
from worker.runtime.ticks import TICK_SECONDS, Ticks


def test_a_tick_that_fails_is_logged_once_and_called_again() -> None:
    errors = [ValueError("a"), ValueError("b"), None, ValueError("c")]

    def tick() -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    ticks = Ticks("a", tick, time.monotonic)
    with capture_logs() as logged:
        assert [ticks.round() for _ in range(4)] == [TICK_SECONDS] * 4
    assert [line["error"] for line in logged] == ["ValueError: a", "ValueError: c"]


def test_a_worker_ticks_from_its_start(valkey: Valkey) -> None:
    ticked: list[int] = []
    flow = Flow(name="ticking", handler=lambda _: None, tick=lambda: ticked.append(1))
    with running(Worker([flow], valkey.url)):
        wait_until(lambda: ticked, "a tick")
