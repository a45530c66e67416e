"""What lasts is logged when it begins and then once a minute, however often the engine meets it."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flask
import pytest
import redis
from structlog.testing import capture_logs

from orders import errors
from orders import wiring as bootstrap
from orders.http import problems
from tests.kit.engine import Clock, ClockedQueue, Refusing, shared_by, station_of
from worker import BatchScheduler, Flow, Task, Unavailable, events
from worker.log import Reminder
from worker.runtime.event_log import EventLog
from worker.runtime.isolation import BatchResult
from worker.runtime.pauses import PauseWatch
from worker.runtime.renewal import Renewer
from worker.runtime.settling import Settler
from worker.runtime.station import ServerCheck
from worker.runtime.sweep import Sweeper
from worker.runtime.ticks import Ticks
from worker.runtime.waker import Alarm

SILENT = redis.TimeoutError("silent")
MINUTES = 10


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines_of_an_outage(clock: Clock, meet: Callable[[], object]) -> Counter[str]:
    """What is logged if it is met once a second for ten minutes."""
    with capture_logs() as lines:
        for _ in range(60 * MINUTES):
            meet()
            clock.move(1)
    return Counter(line["event"] for line in lines)


def test_a_reminder_is_due_at_first_and_then_once_a_minute(clock: Clock) -> None:
    reminder = Reminder(clock)
    due = []
    for second in range(180):
        if reminder.is_due():
            due.append(second)
        clock.move(1)
    assert due == [0, 60, 120]
    reminder.reset()
    assert [reminder.is_due(), reminder.is_due()] == [True, False]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


class Unchecked(ClockedQueue):
    def check_server(self) -> None:
        raise SILENT


def _server_check(clock: Clock) -> Callable[[], object]:
    return ServerCheck(Unchecked("a", clock)).check


def _renewal(clock: Clock) -> Callable[[], object]:
    queue = ClockedQueue("a", clock)
    queue.schedule("a", 1)
    flow = Flow(name="a", handler=raising(SILENT))
    shared = shared_by(clock.environment)
    renewer = Renewer(flow, queue, shared, Settler(flow, queue, shared))
    tasks = queue.claim(1, 10_000).tasks
    queue.before = Refusing(SILENT)

    def renew() -> None:
        with renewer.holding(tasks, clock.now - 5):
            renewer.renew(clock.now)

    return renew


def _settling(clock: Clock) -> Callable[[], object]:
    queue = ClockedQueue("a", clock)
    settler = Settler(Flow(name="a", handler=raising(SILENT)), queue, shared_by(clock.environment))
    queue.before = Refusing(SILENT)
    return lambda: settler.settle(BatchResult(done=[Task("a")]))


def _pauses(clock: Clock) -> Callable[[], object]:
    gone = SimpleNamespace(find=raising(Unavailable("gone")))
    flow = Flow(name="a", handler=raising(SILENT), pauses=gone)
    return PauseWatch(flow, ClockedQueue("a", clock)).allows


def _sweep(error: BaseException) -> Callable[[Clock], Callable[[], object]]:
    def of(clock: Clock) -> Callable[[], object]:
        flow = Flow(name="a", handler=raising(error), sweep=raising(error))
        queue = ClockedQueue("a", clock)
        sweeper = Sweeper(
            station_of(flow, queue), raising(error), queue=queue, worker_id="w", alarm=Alarm(clock)
        )
        return lambda: sweeper.sweep(clock.now)

    return of


def _ticks(clock: Clock) -> Callable[[], object]:
    return Ticks("a", raising(ValueError("a bug")), clock).round


def _scheduler(clock: Clock) -> Callable[[], object]:
    queue = ClockedQueue("a", clock)
    queue.before = Refusing(SILENT)
    scheduler = BatchScheduler(queue)
    return lambda: scheduler._send({"a": None})


def _locked_row(clock: Clock) -> Callable[[], object]:
    log = EventLog(clock)
    return lambda: log(events.Retried("a", Task("a"), 50, Unavailable("locked")))


def _readiness(clock: Clock) -> Callable[[], object]:
    check: Any = raising(errors.StorageUnavailable("gone"))
    client: Any = SimpleNamespace(ping=lambda: True)
    reminder = Reminder(clock)
    return lambda: bootstrap._readiness(check, client, reminder)


def _requests(clock: Clock) -> Callable[[], object]:
    app = flask.Flask(__name__)
    app.extensions["orders"] = SimpleNamespace(outage=Reminder(clock))
    problems.install(app)
    app.get("/")(raising(errors.StorageUnavailable("gone")))
    return lambda: app.test_client().get("/")


OUTAGES: dict[str, Callable[[Clock], Callable[[], object]]] = {
    "Redis could not be checked yet": _server_check,
    "lease not extended yet": _renewal,
    "not settled yet": _settling,
    "pauses unknown": _pauses,
    "sweep cannot read records": _sweep(Unavailable("gone")),
    "sweep failed": _sweep(ValueError("a bug")),
    "tick failed": _ticks,
    "changes not sent": _scheduler,
    "unavailable to this task": _locked_row,
    "not ready": _readiness,
    "storage unavailable": _requests,
}


@pytest.mark.parametrize("message", OUTAGES)
def test_an_outage_of_ten_minutes_has_ten_lines(message: str, clock: Clock) -> None:
    assert lines_of_an_outage(clock, OUTAGES[message](clock)) == {message: MINUTES}
