"""Whole workers, with their threads, on a fake Redis: how they are put together, and how they end."""

import asyncio
import dataclasses
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import fakeredis
import pytest
from structlog.testing import capture_logs

from worker import DelayQueue, Due, Flow, Retry, Task, UnsafeServer, Worker, events
from worker.queue.environment import Environment
from worker.runtime.hangs import HangDetector
from worker.runtime.heartbeat import Heartbeat
from worker.runtime.station import ServerCheck
from worker.runtime.worker import DRAIN_SECONDS, SETTLE_SECONDS

NOWHERE = "redis://127.0.0.1:1"
#: Ends a hang; nothing here waits for time to pass.
LONG = 60


class Client(fakeredis.FakeRedis):
    """Closing a fake does not end its subscription, so it looks often."""

    def pubsub(self, **settings: Any) -> Any:
        made: Any = super().pubsub(**settings)  # type: ignore[no-untyped-call]
        get_message = made.get_message
        made.get_message = lambda **_: get_message(timeout=0.01)
        return made


class Clients:
    """Stands for `connect`: clients of one fake Redis."""

    def __init__(self) -> None:
        self.server = fakeredis.FakeServer()
        self.made: list[Client] = []
        self.settings: list[dict[str, Any]] = []

    def __call__(self, url: str, **settings: Any) -> Client:
        assert url == NOWHERE
        self.made.append(Client(server=self.server, protocol=2))
        self.settings.append(settings)
        return self.made[-1]

    def worker(self, flows: Sequence[Flow], **settings: Any) -> Worker:
        return Worker(flows, NOWHERE, environment=Environment(connect=self), **settings)

    def queue(self, name: str) -> DelayQueue:
        return DelayQueue(Client(server=self.server, protocol=2), name)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    made = Clients()
    monkeypatch.setattr(ServerCheck, "check", lambda _: None)
    # So that a wake-up which does not come is noticed.
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", 3600)
    return made


class Running:
    """Workers that run, each in a thread."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = workers
        self.errors: list[BaseException] = []
        self.threads = [
            # Daemons, so that a test which fails meanwhile does not keep Python from ending.
            threading.Thread(target=self._run, args=(worker,), name=f"run {n}", daemon=True)
            for n, worker in enumerate(workers)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001  the test looks at it
            self.errors.append(error)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in self.threads)

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.join()


def _others(known: Sequence[threading.Thread]) -> list[threading.Thread]:
    """The threads there are beside those."""
    return [thread for thread in threading.enumerate() if thread not in known]


def _flow(name: str = "a", **settings: Any) -> Flow:
    return Flow(**{"name": name, "handler": lambda _: None, **settings})


def _threads(worker: Worker) -> dict[str, int]:
    """How many threads each lane has."""
    names = [thread.name.rpartition(" ")[0] for thread in worker._handlers]
    return {name: names.count(name) for name in names}


# -- putting together ----------------------------------------------------------------------


@pytest.mark.parametrize("names", [[], ["a", "b", "a"]])
def test_a_worker_needs_flows_of_different_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="each with a unique name"):
        Worker([_flow(name) for name in names], NOWHERE)


@pytest.mark.parametrize("threads", [0, -1])
def test_a_worker_needs_a_thread(threads: int) -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        Worker([_flow()], NOWHERE, threads=threads)


def test_each_flow_has_its_own_threads_by_default_as_the_worker() -> None:
    worker = Worker([_flow("a"), _flow("b", threads=5), _flow("c")], NOWHERE, threads=2)
    assert _threads(worker) == {"a": 2, "b": 5, "c": 2}
    assert len({id(station.gate) for station in worker._stations}) == 3


def test_what_a_flow_is_made_of_need_not_be_hashable() -> None:
    @dataclasses.dataclass
    class Handler:
        """A dataclass compares by value, and so has no hash."""

        rate: int = 1

        def __call__(self, tasks: Sequence[Task]) -> None:
            assert len(tasks) <= self.rate

    flows = [_flow("a", handler=Handler()), _flow("b", handler=Handler())]
    assert len({id(each.lane) for each in Worker(flows, NOWHERE)._watched}) == 2


def test_there_is_a_connection_for_each_thread_and_sweep(clients: Clients) -> None:
    clients.worker([_flow("a", threads=20, sweep=lambda *_: []), _flow("b")])
    shared, sweep = clients.settings
    threads = 20 + 1 + 2 + 2  # handlers, renewers, waker and heartbeat
    assert shared["max_connections"] >= threads
    assert sweep["timeout_seconds"] == 0.5


def test_every_probe_and_every_sweep_is_watched(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[HangDetector] = []

    class Watching(Heartbeat):
        def __init__(
            self,
            name: str,
            stations: Any,
            detectors: Sequence[HangDetector],
            stopping: threading.Event,
        ) -> None:
            watched.extend(detectors)
            super().__init__(name, stations, detectors, stopping)

    monkeypatch.setattr("worker.runtime.worker.Heartbeat", Watching)
    worker = clients.worker([_flow("a", sweep=lambda *_: []), _flow("b")])
    worker.stop()
    worker.run()
    assert {(detector._queue, detector.what) for detector in watched} == {
        ("a", "probe"),
        ("b", "probe"),
        ("a", "sweep"),
    }


def test_a_stopping_worker_calls_every_finish_once(clients: Clients) -> None:
    left: dict[str, float] = {}

    def broken(seconds: float) -> None:
        left["broken"] = seconds
        raise asyncio.CancelledError

    flows = [
        _flow("broken", finish=broken),
        _flow("sound", finish=partial(left.__setitem__, "sound")),
    ]
    worker = clients.worker(flows)
    worker.stop()
    with capture_logs() as logged:
        worker.run()
    assert {
        name: 0 < seconds <= DRAIN_SECONDS - SETTLE_SECONDS for name, seconds in left.items()
    } == {
        "broken": True,
        "sound": True,
    }
    assert [line["queue"] for line in logged if line["event"] == "finish failed"] == ["broken"]


# -- at work -------------------------------------------------------------------------------


def test_a_flow_that_comes_up_is_claimed_for_at_once(clients: Clients) -> None:
    passes, handled = threading.Event(), threading.Event()
    flow = _flow(handler=lambda _: handled.set(), probe=lambda: passes.wait(LONG) and None)
    clients.queue("a").schedule("x", 1)
    waiting = threading.Event()

    def listen(event: events.Event) -> None:
        if isinstance(event, events.Waiting):
            waiting.set()

    running = Running(clients.worker([flow], listeners=[listen]))
    assert waiting.wait(LONG)
    passes.set()
    assert handled.wait(LONG)
    running.stop()


def test_listeners_follow_the_log_and_a_failing_one_harms_nobody(
    clients: Clients,
) -> None:
    told: list[events.Event] = []
    handled = threading.Event()

    def broken(_event: events.Event) -> None:
        raise ValueError("a bug")

    def listen(event: events.Event) -> None:
        told.append(event)
        if isinstance(event, events.Handled):
            handled.set()

    clients.queue("a").schedule("x", 1)
    with capture_logs() as logged:
        running = Running(clients.worker([_flow()], listeners=[broken, listen]))
        assert handled.wait(LONG)
        running.stop()
    assert [line["event"] for line in logged].count("listener fails") == 1
    assert {"started", "available", "batch", "stopped"} <= {line["event"] for line in logged}
    assert {type(event) for event in told} >= {events.FlowUp, events.Claimed, events.Handled}


def test_what_was_done_is_counted_and_logged_at_the_end(clients: Clients) -> None:
    seen = threading.Event()

    def handler(tasks: Sequence[Task]) -> dict[str, Retry]:
        seen.set()
        return {tasks[0].id: Retry(60_000)}

    clients.queue("a").schedule_many((name, 1, b"") for name in "xy")
    with capture_logs() as logged:
        running = Running(worker := clients.worker([_flow(handler=handler)]))
        assert seen.wait(LONG)
        running.stop()
    assert worker.counts == {"done": 1, "retried": 1}
    [started] = [line for line in logged if line["event"] == "started"]
    [stopped] = [line for line in logged if line["event"] == "stopped"]
    assert (started["worker"], started["queues"]) == (worker.id, ["a"])
    assert (stopped["done"], stopped["retried"], stopped["stuck"]) == (1, 1, [])


# -- the end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("worker.runtime.waker.Waker.run", "waker"),
        ("worker.runtime.sweep.Sweeper.round", "sweep a"),
        ("worker.runtime.gate.Gate._probe", "probe a"),
        ("worker.runtime.lane.Lane.run", "a 1"),
        ("worker.runtime.renewal.Renewer.round", "renewer a"),
        ("worker.runtime.heartbeat.Heartbeat.run", "heartbeat"),
    ],
)
def test_a_thread_that_dies_ends_its_worker_with_its_error(
    clients: Clients, target: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[threading.Thread] = []

    def die(*_: object) -> None:
        died.append(threading.current_thread())
        raise SystemExit("bad luck")  # which Python's own threads keep to themselves

    monkeypatch.setattr(target, die)
    with capture_logs() as logged, pytest.raises(SystemExit, match="bad luck"):
        clients.worker([_flow(sweep=lambda *_: [], probe=lambda: None)]).run()
    assert [(thread.name, thread.daemon) for thread in died] == [(name, True)]
    [line] = [line for line in logged if line["event"] == "thread died"]
    assert (line["log_level"], line["thread"]) == ("critical", name)
    assert line["error"] == "SystemExit: bad luck"


def test_on_an_unsafe_server_a_worker_goes_on_from_its_records(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsafe(_: object) -> list[str]:
        raise UnsafeServer("allkeys-lru")

    monkeypatch.undo()  # the check itself
    monkeypatch.setattr(DelayQueue, "check_server", unsafe)
    monkeypatch.setattr("worker.runtime.sweep.SILENCE_SECONDS", 0.0)
    handled = threading.Event()
    records = [[Due("x", -1000)]]
    flow = _flow(
        handler=lambda _: handled.set(),
        sweep=lambda *_: records,
        without_redis="handle",
        sweep_seconds=0.01,
    )
    running = Running(clients.worker([flow]))
    assert handled.wait(LONG)
    running.stop()
    assert running.errors == []
    assert clients.queue("a").stats().due == 0, "nothing is restored there"


def test_a_worker_that_was_stopped_before_it_runs_ends_at_once(clients: Clients) -> None:
    worker = clients.worker([_flow()])
    worker.stop()
    worker.run()
    assert worker.counts == {}


def test_a_worker_ends_without_a_hanging_handler_and_names_it(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.enumerate()
    monkeypatch.setattr("worker.runtime.worker.DRAIN_SECONDS", 0.05)
    began, release = threading.Event(), threading.Event()

    def handler(_tasks: Sequence[Task]) -> None:
        began.set()
        assert release.wait(LONG)

    queue = clients.queue("a")
    queue.schedule("x", 1)
    with capture_logs() as logged:
        running = Running(clients.worker([_flow(handler=handler)]))
        assert began.wait(LONG)
        running.stop()
    [stopped] = [line for line in logged if line["event"] == "stopped"]
    assert stopped["stuck"] == ["a 1"]
    [again] = queue.claim(9, 1000).tasks
    assert (again.id, again.deliveries, again.attempt) == ("x", 0, 1)
    release.set()
    for thread in _others(before):
        thread.join(LONG)


def test_a_worker_waits_for_what_it_called_and_names_what_hangs(
    clients: Clients,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.enumerate()
    monkeypatch.setattr("worker.runtime.worker.DRAIN_SECONDS", 0.05)
    began, release, swept = threading.Semaphore(0), threading.Event(), threading.Event()

    def hang(_after: float | None, _before: float) -> list[list[Due]]:
        began.release()
        assert release.wait(LONG)
        return []

    def sweep(_after: float | None, _before: float) -> list[list[Due]]:
        swept.set()
        return []

    def tick() -> None:
        hang(None, 0)

    flows = [_flow(name="a", sweep=hang), _flow(name="b", tick=tick), _flow(name="c", sweep=sweep)]
    with capture_logs() as logged:
        running = Running(clients.worker(flows))
        assert began.acquire(timeout=LONG)
        assert began.acquire(timeout=LONG)
        assert swept.wait(LONG)
        running.stop()
    [stopped] = [line for line in logged if line["event"] == "stopped"]
    assert {"sweep a", "ticks b"} <= {*stopped["stuck"]}
    assert "sweep c" not in stopped["stuck"]
    release.set()
    for thread in _others(before):
        thread.join(LONG)


def test_a_lease_is_extended_until_the_last_handler_has_ended(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    extended, began = threading.Event(), threading.Event()
    extend = DelayQueue.extend

    def note(*args: Any, **more: Any) -> None:
        extend(*args, **more)
        if worker._stopping.is_set():
            extended.set()

    monkeypatch.setattr(DelayQueue, "extend", note)

    def handler(_tasks: Sequence[Task]) -> None:
        began.set()
        assert extended.wait(LONG)

    clients.queue("a").schedule("x", 1)
    worker = clients.worker([_flow(handler=handler, lease_seconds=2)])
    running = Running(worker)
    assert began.wait(LONG)
    running.stop()
    assert running.errors == []
    assert worker.counts == {"done": 1}


def test_the_timeout_of_redis_is_a_setting() -> None:
    flow = _flow(sweep=lambda *_: [])
    worker = Worker([flow], NOWHERE, redis_timeout_seconds=3)
    timeouts = [
        client.connection_pool.connection_kwargs["socket_timeout"]
        for client in (worker._client, worker._sweep_client)
    ]
    assert timeouts == [3, 1.5]
