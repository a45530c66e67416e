"""How the worker waits, what it takes next, and how it treats suspects; with a counting queue."""

import threading
from collections.abc import Iterable

import pytest
import redis

from worker import Flow, Task, Unavailable, Worker, one_at_a_time
from worker.isolation import Handled
from worker.loop import RECONNECT, SHARE_SECONDS, SLOW_POLL_SECONDS, Station
from worker.queue import Claim, DelayQueue

NOWHERE = "redis://127.0.0.1:1"
NOTHING = Claim([], None, paused=False)


class Scripted(DelayQueue):
    """Answers claims from a list, the last one for ever, and counts them."""

    def __init__(self, name: str, *answers: Claim | redis.RedisError) -> None:
        super().__init__(redis.Redis.from_url(NOWHERE), name)
        self.answers = list(answers)
        self.claims = 0

    def claim(self, limit: int, lease_ms: int, *, now_ms: int | None = None) -> Claim:  # noqa: ARG002
        self.claims += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, redis.RedisError):
            raise answer
        return answer

    def check_server(self) -> list[str]:
        return []


class Alarm(threading.Event):
    """Notes how long each wait would have been, and stops the worker after the last."""

    def __init__(self, worker: Worker, waits: int) -> None:
        super().__init__()
        self.worker = worker
        self.left = waits
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.left -= 1
        if self.left == 0:
            self.worker.stop()
        return True


def _worker(queues: Iterable[Scripted], *, waits: int) -> tuple[Worker, Alarm]:
    """A worker on scripted queues that are up, and what it waits on."""
    queues = list(queues)
    worker = Worker([Flow(name=queue.name, handler=lambda _: None) for queue in queues], NOWHERE)
    for station, queue in zip(worker._stations, queues, strict=True):
        station.queue = queue
        station.up.set()
    alarm = Alarm(worker, waits)
    worker._alarm = alarm
    return worker, alarm


def _claim(*ids: str, next_in_ms: int | None = None) -> Claim:
    return Claim([Task(name) for name in ids], next_in_ms, paused=False)


# -- waiting -------------------------------------------------------------------------------


def test_an_idle_worker_claims_once_per_slow_poll() -> None:
    queue = Scripted("a", NOTHING)
    worker, alarm = _worker([queue], waits=100)
    assert worker._next() is None
    assert queue.claims == 100
    assert alarm.waits == [SLOW_POLL_SECONDS] * 100


@pytest.mark.parametrize(("next_in_ms", "seconds"), [(1, 0.001), (1234, 1.234), (60_000, 5.0)])
def test_the_wait_is_until_the_next_task_is_due_but_no_longer_than_a_slow_poll(
    next_in_ms: int, seconds: float
) -> None:
    worker, alarm = _worker([Scripted("a", _claim(next_in_ms=next_in_ms))], waits=1)
    worker._next()
    assert alarm.waits == [seconds]


def test_the_wait_is_until_the_first_of_all_queues_is_due() -> None:
    queues = [Scripted("a", _claim(next_in_ms=900)), Scripted("b", _claim(next_in_ms=300))]
    worker, alarm = _worker(queues, waits=1)
    worker._next()
    assert alarm.waits == [0.3]


def test_several_threads_wait_as_one() -> None:
    queue = Scripted("a", NOTHING)
    worker, alarm = _worker([queue], waits=50)
    threads = [threading.Thread(target=worker._work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.claims == len(alarm.waits) == 50


def test_a_silent_redis_is_asked_again_more_and_more_rarely() -> None:
    queue = Scripted("a", redis.ConnectionError("gone"))
    worker, alarm = _worker([queue], waits=10)
    worker._next()
    for attempt, wait in enumerate(alarm.waits, start=1):
        assert (
            RECONNECT.delay_ms(attempt, lambda: 0.0)
            <= wait * 1000
            <= RECONNECT.delay_ms(attempt, lambda: 1.0)
        )
    assert queue.claims == 10
    assert alarm.waits[-1] >= 0.5


def test_the_waits_begin_anew_once_redis_has_answered() -> None:
    gone = redis.ResponseError("WRONGTYPE")
    worker, alarm = _worker([Scripted("a", gone, gone, gone, NOTHING, gone)], waits=5)
    worker._next()
    assert alarm.waits[3] == SLOW_POLL_SECONDS
    assert alarm.waits[4] <= RECONNECT.delay_ms(1, lambda: 1.0) / 1000


def test_a_stopped_worker_claims_nothing() -> None:
    queue = Scripted("a", _claim("x"))
    worker, _ = _worker([queue], waits=1)
    worker.stop()
    assert worker._next() is None
    assert queue.claims == 0


# -- threads -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("worker.waker.Waker.run", "waker"),
        ("worker.sweep.Sweeper.run", "sweep a"),
        ("worker.loop.Worker._probe", "probe a"),
        ("worker.loop.Worker._work", "worker 1"),
    ],
)
def test_a_thread_that_dies_ends_its_worker_which_raises_what_it_died_of(
    target: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[threading.Thread] = []

    def die(*_: object) -> None:
        died.append(threading.current_thread())
        raise SystemExit("bad luck")  # which Python's own threads keep to themselves

    monkeypatch.setattr(target, die)
    flow = Flow(name="a", handler=lambda _: None, sweep=lambda *_: [])
    with pytest.raises(SystemExit, match="bad luck"):
        Worker([flow], NOWHERE).run()
    assert [(thread.name, thread.daemon) for thread in died] == [(name, True)]


# -- what comes next -----------------------------------------------------------------------


def test_the_first_queue_is_asked_first_and_the_second_only_when_it_is_empty() -> None:
    high = Scripted("high", _claim("h1"), _claim("h2"), NOTHING, _claim("h3"))
    low = Scripted("low", _claim("l1"), NOTHING)
    worker, _ = _worker([high, low], waits=1)
    taken = [worker._next() for _ in range(4)]
    assert [found[1].tasks[0].id for found in taken if found] == ["h1", "h2", "l1", "h3"]
    assert low.claims == 1


def test_a_queue_whose_flow_is_down_is_not_claimed_from() -> None:
    high, low = Scripted("high", _claim("h")), Scripted("low", _claim("l"))
    worker, _ = _worker([high, low], waits=1)
    worker._stations[0].up.clear()
    found = worker._next()
    assert found is not None
    assert found[1].tasks[0].id == "l"
    assert high.claims == 0


# -- suspects, and how much to claim -------------------------------------------------------


@pytest.fixture
def station() -> Station:
    flow = Flow(name="a", handler=lambda _: None, batch_size=100)
    return Station(flow, Scripted("a", NOTHING))


def _delivered(*deliveries: int) -> list[Task]:
    return [Task(str(n), deliveries=count) for n, count in enumerate(deliveries)]


def test_a_batch_without_suspects_is_handled_whole(station: Station) -> None:
    tasks = _delivered(*[0] * 100)
    assert station.split_suspects(tasks) == (tasks, [])


def test_suspects_are_handled_a_few_at_a_time(station: Station) -> None:
    tasks = _delivered(*[0, 1] * 50)
    suspects, others = station.split_suspects(tasks)
    assert suspects == tasks[1:20:2]
    assert sorted(suspects + others) == sorted(tasks)


def test_a_task_suspected_again_is_handled_alone_and_the_worst_first(station: Station) -> None:
    tasks = _delivered(1, 2, 4, 4, 3)
    suspects, others = station.split_suspects(tasks)
    assert suspects == [tasks[2]]
    assert others == [tasks[0], tasks[1], tasks[3], tasks[4]]


def test_a_claim_of_one_at_a_time_grows_while_it_is_fast_and_shrinks_while_it_is_slow() -> None:
    flow = Flow(name="a", handler=one_at_a_time(lambda _: None), batch_size=10)
    station = Station(flow, DelayQueue(redis.Redis.from_url(NOWHERE), "a"))
    limits = [station.limit]
    for seconds in [0.1] * 5 + [SHARE_SECONDS * 0.7] + [SHARE_SECONDS * 1.1] * 4:
        station.adapt(Handled(), seconds)
        limits.append(station.limit)
    assert limits == [1, 2, 4, 8, 10, 10, 10, 5, 2, 1, 1]


def test_a_batch_is_claimed_whole_however_long_it_takes(station: Station) -> None:
    station.adapt(Handled(), 3600)
    assert station.limit == 100


def test_fewer_tasks_are_claimed_after_an_outage_which_a_batch_may_have_caused(
    station: Station,
) -> None:
    station.adapt(
        Handled(untouched=[Task("a")], outage=Unavailable("a statement took too long")), 1
    )
    assert station.limit == 50


@pytest.mark.parametrize("names", [[], ["a", "b", "a"]])
def test_a_worker_needs_flows_of_different_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="each with a unique name"):
        Worker([Flow(name=name, handler=lambda _: None) for name in names], NOWHERE)


@pytest.mark.parametrize("threads", [0, -1])
def test_a_worker_needs_a_thread(threads: int) -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        Worker([Flow(name="a", handler=lambda _: None)], NOWHERE, threads=threads)
