"""What scheduling costs, within a create and on its own.

    python -m benchmarks.enqueue [--orders 2000] [--tasks 20000] [--repetitions 3]

This process creates orders with the service as it is wired and with one that schedules nothing, in
short turns on one engine, so that both see the same machine. The queue's own calls are compared
with bare ZADDs in the same batches. The numbers of orders and tasks are asserted.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import uuid4

from uuid_utils import uuid7

from benchmarks.report import Report
from benchmarks.scene import EARLIER, SKUS, Scene, epoch_ms, scene
from orders.bootstrap import bootstrap
from orders.config import Settings
from orders.order.domain import NewOrder, Timeouts
from orders.order.service import OrderService
from worker.queue.formats import SLICE

#: Creates in one turn.
TURN = 100
WARM_UP_TURNS = 3
DAY_MS = 86_400_000

#: An id, a due time, and an empty payload.
Task = tuple[str, int, bytes]


class NoScheduler:
    """Schedules nothing."""

    def schedule(self, order_id: str, *, delay_ms: float, even_if_dead: bool = False) -> None: ...

    def cancel(self, order_id: str) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description="What scheduling costs.")
    parser.add_argument("--orders", type=int, default=2_000, help=f"in turns of {TURN}")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    turns = max(1, options.orders // TURN)
    with scene() as stage:
        report = Report("enqueue", stage.settings())
        for _ in range(options.repetitions):
            for threads in (1, 4):
                without, scheduled = creates(stage, turns, threads)
                many = f"{threads} thread{'s' * (threads > 1)}"
                _add(report, f"create without scheduling, {many}", turns * TURN, without, threads)
                _add(report, f"create, {many}", turns * TURN, scheduled, threads)
                report.add(f"create: with to without, {many}", ratio=scheduled / without)
            for name, seconds in schedules(stage, options.tasks):
                _add(report, name, options.tasks, seconds)
        report.save()


def _add(report: Report, row: str, count: int, seconds: float, threads: int = 1) -> None:
    report.add(row, per_s=count / seconds, ms_each=1000 * threads * seconds / count)


def creates(stage: Scene, turns: int, threads: int) -> tuple[float, float]:
    """How many seconds these turns of creates take without scheduling, and with it."""
    stage.client().flushall()
    stage.load(EARLIER, items=1, paid_share=1)
    services = bootstrap(Settings(database_url=stage.database_url, redis_url=stage.redis_url))
    without = OrderService(services.engine, NoScheduler(), Timeouts(1800, 1, 86_400))
    [[customer]] = stage.rows("SELECT id FROM api_clients")
    seconds = {without: 0.0, services.orders: 0.0}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(WARM_UP_TURNS + turns):
            if turn == WARM_UP_TURNS:
                stage.analyze()
                seconds = dict.fromkeys(seconds, 0.0)
            for service in random.sample([*seconds], 2):
                start = time.perf_counter()
                placing = [
                    pool.submit(_place, service, customer, TURN // threads) for _ in range(threads)
                ]
                for placed in placing:
                    placed.result()
                seconds[service] += time.perf_counter() - start
    services.close()
    expected = (WARM_UP_TURNS + turns) * TURN
    assert stage.count("FROM unpaid_orders") == 2 * expected
    assert stage.queue().stats().scheduled == expected
    return seconds[without], seconds[services.orders]


def _place(service: OrderService, client_id: str, count: int) -> None:
    for _ in range(count):
        quantities = {f"sku-{random.randrange(SKUS)}": 1}
        service.place(
            NewOrder(client_id=client_id, key=uuid4().hex, fingerprint="", quantities=quantities)
        )


def schedules(stage: Scene, count: int) -> Iterator[tuple[str, float]]:
    """How many seconds it takes to schedule so many tasks, in each way in turn."""
    client, queue = stage.client(), stage.queue()
    now_ms = epoch_ms(datetime.now(UTC))

    def zadd(tasks: Iterable[Task]) -> None:
        for task_id, due_at_ms, _ in tasks:
            client.zadd(queue.keys.scheduled, {task_id: due_at_ms})

    def zadd_many(tasks: Iterable[Task]) -> None:
        pipeline = client.pipeline(transaction=False)
        for task_id, due_at_ms, _ in tasks:
            pipeline.zadd(queue.keys.scheduled, {task_id: due_at_ms})
        pipeline.execute()

    def schedule(tasks: Iterable[Task]) -> None:
        for task in tasks:
            queue.schedule(*task)

    ways: dict[str, Callable[[list[Task]], object]] = {
        f"schedule_many, {SLICE} at a time": queue.schedule_many,
        f"bare ZADD, a pipeline of {SLICE}": zadd_many,
        "schedule, one at a time": schedule,
        "bare ZADD, one at a time": zadd,
    }
    for name, way in ways.items():
        client.flushall()
        due = (now_ms + random.randrange(DAY_MS) for _ in range(count))
        tasks: list[Task] = [(str(uuid7()), due_at_ms, b"") for due_at_ms in due]
        start = time.perf_counter()
        for first in range(0, count, SLICE):
            way(tasks[first : first + SLICE])
        yield name, time.perf_counter() - start
        assert queue.stats().scheduled == count


if __name__ == "__main__":
    main()
