"""What a worker says of itself: a restart would mend a failure, and no outage."""

import threading
from collections.abc import Iterator

import pytest

from tests.kit.engine import Clock, ClockedQueue, shared_by, station_of
from worker import Flow, Task
from worker.runtime.hangs import HANGS_SECONDS
from worker.runtime.lane import STALLED_SECONDS, Lane
from worker.runtime.liveness import GRACE_SECONDS, Liveness, Watched, WorkerHealth
from worker.runtime.station import Station
from worker.runtime.sweep import Sweeper

MAX_RUNTIME_SECONDS = 60.0


class Patient:
    """A worker of one flow, whose threads the test plays."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.stopping = threading.Event()
        flow = Flow(
            name="a",
            handler=lambda _: None,
            sweep=lambda *_: [],
            max_runtime_seconds=MAX_RUNTIME_SECONDS,
        )
        self.queue = ClockedQueue("a", clock)
        shared = shared_by(clock.environment, stopping=self.stopping)
        self.station: Station = station_of(flow, self.queue, shared=shared)
        self.lane = Lane(shared)
        self.lane.stations.append(self.station)
        self.sweeper = Sweeper(
            self.station,
            lambda *_: [],
            queue=self.queue,
            worker_id="w",
            alarm=self.lane.alarm,
        )
        watched = Watched(self.station, self.lane, self.sweeper)
        self.liveness = Liveness("w", [watched], self.stopping)
        self.gone = threading.Event()
        self.thread = threading.Thread(target=self.gone.wait, name="renewer a")
        self.thread.start()
        self.liveness.watch([self.thread])

    def report(self) -> WorkerHealth:
        return self.liveness.report(self.clock.now)

    def failures(self) -> tuple[str, ...]:
        """Why the flow is failing; checks that the worker says so."""
        report = self.report()
        [flow] = report.flows
        assert (flow.status == "failing") == bool(flow.failures)
        assert (report.status == "failing") == bool(flow.failures)
        assert report.alive == (not flow.failures)
        return flow.failures

    def end_thread(self) -> None:
        self.gone.set()
        self.thread.join()


@pytest.fixture
def patient() -> Iterator[Patient]:
    made = Patient(Clock())
    yield made
    made.end_thread()


def test_a_worker_whose_threads_work_is_ok(patient: Patient) -> None:
    report = patient.report()
    assert (report.worker, report.status, report.failures) == ("w", "ok", ())
    [flow] = report.flows
    assert (flow.queue, flow.status, flow.failures, flow.outages) == ("a", "ok", (), ())


def test_a_worker_that_has_no_threads_yet_is_starting(patient: Patient) -> None:
    patient.liveness.watch([])
    assert patient.report().status == "starting"
    assert not patient.report().alive


def test_a_worker_that_stops_is_left_alone(patient: Patient) -> None:
    patient.stopping.set()
    patient.end_thread()
    assert patient.report().status == "stopping"
    assert patient.report().alive


# -- failures ------------------------------------------------------------------------------


def test_a_thread_that_ended_is_named(patient: Patient) -> None:
    patient.end_thread()
    assert patient.report().status == "failing"
    assert patient.report().failures == ("the thread 'renewer a' died",)


def test_a_thread_ended_by_an_error_is_named_as_the_worker_stops(patient: Patient) -> None:
    patient.liveness.died("sweep a")
    patient.stopping.set()
    patient.end_thread()
    assert patient.report().status == "failing"
    assert patient.report().failures == ("the thread 'sweep a' died",)


def test_a_handler_may_run_as_long_as_its_flow_allows(patient: Patient) -> None:
    with patient.station.renewer.holding([Task("a")], patient.clock.now) as held:
        patient.clock.move(MAX_RUNTIME_SECONDS + GRACE_SECONDS)
        assert patient.failures() == ()
        patient.clock.move(0.5)
        assert patient.failures() == ("its handler has run for 62 s",)
        held.begin([Task("a")])
        assert patient.failures() == (), "its next call"
        patient.clock.move(MAX_RUNTIME_SECONDS + 2 * GRACE_SECONDS)
        assert patient.failures() != ()
    assert patient.failures() == ()


@pytest.mark.parametrize("what", ["probe", "sweep"])
def test_a_probe_or_a_sweep_that_hangs_is_a_failure(patient: Patient, what: str) -> None:
    detector = {
        "probe": patient.station.gate.hang_detector,
        "sweep": patient.sweeper.hang_detector,
    }[what]
    with detector:
        patient.clock.move(HANGS_SECONDS)
        assert patient.failures() == ()
        patient.clock.move(1)
        assert patient.failures() == (f"its {what} has made no progress for 11 s",)
        detector.progress()
        assert patient.failures() == ()
        detector.progress(MAX_RUNTIME_SECONDS)
        patient.clock.move(MAX_RUNTIME_SECONDS)
        assert patient.failures() == ()
        patient.clock.move(1)
        assert patient.failures() == (f"its {what} has made no progress for 61 s",)
    assert patient.failures() == ()


def test_claims_that_do_not_go_on_are_a_failure(patient: Patient) -> None:
    seen: list[tuple[str, ...]] = []

    def stuck() -> bool:
        patient.clock.move(STALLED_SECONDS)
        seen.append(patient.failures())
        patient.clock.move(1)
        seen.append(patient.failures())
        patient.stopping.set()
        return True

    patient.station.settler.resend = stuck  # type: ignore[assignment, method-assign]
    assert patient.lane.next() is None
    assert seen == [(), ("its claim has made no progress for 31 s",)]
    assert patient.failures() == (), "nobody claims any more"


# -- outages -------------------------------------------------------------------------------


def test_an_outage_is_told_and_is_no_failure(patient: Patient) -> None:
    patient.station._failed_claims = 1
    [flow] = patient.report().flows
    assert (patient.report().status, patient.report().alive) == ("degraded", True)
    assert (flow.status, flow.outages) == ("degraded", ("Redis does not serve claims",))

    patient.station._failed_claims = 0
    patient.sweeper.records_answer = False
    [flow] = patient.report().flows
    assert (flow.status, flow.outages) == ("degraded", ("its records cannot be read",))

    patient.station.gate._up = False
    [flow] = patient.report().flows
    assert flow.outages == ("something its handler needs is unavailable",)
    assert patient.report().alive
