"""A worker whose handler's dependencies, or whose Redis, go away and come back."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import redis

from examples.processes import Valkey, wait_until
from tests.contract.state import state
from worker import DelayQueue, Flow, Task, Unavailable, Worker


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """A worker on a thread of this process."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


class Dependency:
    """What a handler needs; down until it is put up."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.calls = 0
        self.handled: list[str] = []

    def probe(self) -> None:
        if not self.up.is_set():
            raise Unavailable("no answer")

    def handle(self, tasks: Sequence[Task]) -> None:
        self.calls += 1
        self.probe()
        self.handled += [task.id for task in tasks]


def test_an_outage_counts_nothing_buries_nothing_and_ends_by_itself(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    dependency = Dependency()
    probes = iter([None])  # the first probe passes, or nothing would be claimed

    def probe() -> None:
        if next(probes, dependency) is dependency:
            dependency.probe()

    flow = Flow(name="outage", handler=dependency.handle, probe=probe)
    queue = DelayQueue(redis_client, "outage")
    waiting = {"scheduled": {str(n): 1 for n in range(100)}}
    queue.schedule_many((str(n), 1, b"") for n in range(100))
    worker = Worker([flow], valkey.url)
    with running(worker):
        wait_until(lambda: worker.counts["released"], "the batch to be given back")
        found = state(queue)
        assert found.pop("first_due") == waiting["scheduled"]
        assert found == waiting
        dependency.up.set()
        wait_until(lambda: queue.stats().scheduled == 0 == queue.stats().leased, "all to be done")
    assert state(queue) == {}
    assert sorted(dependency.handled) == sorted(waiting["scheduled"])
    assert dependency.calls == 2
    assert worker.counts == {"released": 100, "done": 100}


def test_a_batch_is_given_back_at_once_while_another_thread_waits_for_work(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    dependency = Dependency()
    flow = Flow(name="outage", handler=_once(dependency.handle), lease_seconds=60)
    queue = DelayQueue(redis_client, "outage")
    worker = Worker([flow], valkey.url, threads=3)
    with running(worker):
        queue.schedule("a", 1)
        wait_until(lambda: worker.counts["done"], "the task, long before its lease ends", seconds=5)
    assert worker.counts == {"released": 1, "done": 1}
    assert state(queue) == {}


def _once(handle: Callable[[Sequence[Task]], None]) -> Callable[[Sequence[Task]], None]:
    """A handler that is run the first time only; after that, all is well."""
    calls: list[None] = []

    def handler(tasks: Sequence[Task]) -> None:
        calls.append(None)
        if len(calls) == 1:
            handle(tasks)

    return handler
