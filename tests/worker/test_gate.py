"""A flow goes down with what it needs, and up when its probe says so; calls that hang are told."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kit.engine import Clock, Heard, Wait, shared_by
from worker import Flow, Unavailable, events
from worker.runtime.gate import PROBE, Gate
from worker.runtime.hangs import HANGS_SECONDS, HangDetector

DOWN = Unavailable("no answer")


class Outage:
    """The gate of a flow, whose probe threads the test runs itself."""

    def __init__(self, clock: Clock, *, probed: bool = True) -> None:
        #: What the next probes raise; then they pass.
        self.errors: list[BaseException] = []
        self.probes = 0
        self.heard = Heard()
        self.ups: list[bool] = []
        self.stopping = Wait(clock)
        self.started: list[tuple[str, Callable[[], None]]] = []
        flow = Flow(name="a", handler=lambda _: None, probe=self.probe if probed else None)
        shared = shared_by(clock.environment, self.heard, self.stopping)
        shared = replace(shared, start=lambda name, run: self.started.append((name, run)))
        self.gate = Gate(flow, shared, on_up=lambda: self.ups.append(self.gate.up))

    def probe(self) -> None:
        self.probes += 1
        if self.errors:
            raise self.errors.pop(0)

    def run(self) -> None:
        """Run the thread that was started."""
        [(name, run)] = self.started
        assert name == "probe a"
        self.started.clear()
        run()

    def start(self) -> None:
        """Come up for the first time."""
        self.gate.check()
        self.run()
        self.heard.clear()
        self.ups.clear()

    def told(self) -> list[object]:
        """What was told; of a flow that is up again, after how many seconds."""
        return [
            pytest.approx(event.seconds) if isinstance(event, events.FlowUp) else event
            for event in self.heard
        ]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock) -> Outage:
    return Outage(clock)


def _between_half_and_all(waits: list[float], attempts: list[int]) -> bool:
    longest = [PROBE(attempt, lambda: 1.0) for attempt in attempts]
    return all(most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True))


# -- up and down ---------------------------------------------------------------------------


def test_a_flow_is_down_until_its_first_probe_has_passed(outage: Outage) -> None:
    assert not outage.gate.up
    outage.gate.check()
    assert not outage.gate.up
    outage.run()
    assert outage.gate.up
    assert outage.ups == [True]  # the claims are woken, and find it up
    assert outage.stopping.waits == []
    assert outage.heard == [events.FlowUp("a", 0.0)]


def test_a_flow_without_a_probe_is_up_at_once(clock: Clock) -> None:
    outage = Outage(clock, probed=False)
    outage.gate.check()
    assert outage.gate.up
    assert outage.started == []


def test_a_flow_that_goes_down_is_reported_once_then_probed(outage: Outage, clock: Clock) -> None:
    outage.start()
    clock.move(100)
    outage.gate.take_down(DOWN)
    outage.gate.take_down(DOWN)  # as its other threads do
    assert not outage.gate.up
    assert outage.heard == [events.FlowDown("a", DOWN)]
    outage.errors = [DOWN, DOWN]
    outage.run()
    assert _between_half_and_all(outage.stopping.waits, [1, 2, 3])
    assert outage.told() == [events.FlowDown("a", DOWN), sum(outage.stopping.waits)]


def test_a_flow_whose_probe_gets_no_thread_is_not_down_for_good(outage: Outage) -> None:
    outage.start()

    def no_thread(_name: str, _run: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    shared = outage.gate._shared
    outage.gate._shared = replace(shared, start=no_thread)
    with pytest.raises(RuntimeError):
        outage.gate.take_down(DOWN)
    assert outage.gate.up
    outage.gate._shared = shared
    outage.gate.take_down(DOWN)
    outage.run()
    assert outage.gate.up


@pytest.mark.parametrize("end", [Gate.handled, Gate.seems_over])
def test_an_outage_that_only_a_batch_can_tell_from_its_end_is_reported_once(
    outage: Outage, clock: Clock, end: Callable[[Gate], None]
) -> None:
    clock.now = 0.0  # in seconds since 1970, rounding shows in so short a wait
    outage.start()
    for _ in range(4):
        clock.move(1)
        outage.gate.take_down(DOWN)
        outage.run()
    first, rest = sum(outage.stopping.waits[:1]), sum(outage.stopping.waits[1:]) + 2
    assert outage.told() == [events.FlowDown("a", DOWN), first, events.FlowDown("a", DOWN)]
    assert (outage.gate.up, outage.gate.down) == (True, True)
    end(outage.gate)
    end(outage.gate)
    assert outage.told()[3:] == [rest]
    assert not outage.gate.down


def test_a_stopping_worker_probes_no_more(outage: Outage) -> None:
    outage.start()
    outage.gate.take_down(DOWN)
    outage.stopping.set()
    outage.run()
    assert outage.probes == 1
    assert not outage.gate.up


def test_a_probe_that_exits_ends_its_thread(outage: Outage) -> None:
    outage.errors = [SystemExit("bad luck")]
    outage.gate.check()
    with pytest.raises(SystemExit):
        outage.run()


def test_a_probe_that_hangs_is_told_once_each_time(outage: Outage, clock: Clock) -> None:
    def hang() -> None:
        for _ in range(8):
            outage.gate.hang_detector.report(clock.now)
            clock.move(HANGS_SECONDS / 4)

    outage.errors = [DOWN]
    answer = outage.probe

    def hang_then_answer() -> None:
        hang()
        answer()

    object.__setattr__(outage.gate._flow, "probe", hang_then_answer)
    outage.gate.check()
    outage.run()
    hang()  # it is over
    told = events.Hangs("a", "probe", 1.25 * HANGS_SECONDS)
    assert outage.heard.of(events.Hangs) == [told, told]


# -- calls that hang -----------------------------------------------------------------------


def test_a_call_that_raises_is_over(clock: Clock) -> None:
    heard = Heard()
    detector = HangDetector("a", "sweep", shared_by(clock.environment, heard))
    with pytest.raises(KeyError), detector:
        raise KeyError
    detector.report(clock.now + 1000)
    assert heard == []


def test_a_probe_whose_coroutine_was_cancelled_has_failed(outage: Outage) -> None:
    outage.errors = [asyncio.CancelledError()]
    outage.gate.check()
    outage.run()
    assert outage.probes == 2
    assert outage.gate.up
