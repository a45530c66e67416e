"""How fast due orders are processed, from the claim to the ack.

    python -m benchmarks.drain [--orders 50000] [--peer-orders 2000] [--repetitions 7]

Each order has three items; a fifth are paid before they are due. Measured is all that the others
take: cancel them, return exactly their stock, write one event each, commit, ack. In the same run,
for comparison: other task queues doing the same work, one order at a time, and the limits of any
implementation: the same statements in the same batches straight from the driver, and the same
scripts without a database. Stock and events are asserted after every repetition.
"""

import argparse

from benchmarks import peers, raw
from benchmarks.report import Report
from benchmarks.scene import scene


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast due orders are let go.")
    parser.add_argument("--orders", type=int, default=50_000)
    parser.add_argument("--peer-orders", type=int, default=2_000)
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("drain", stage.settings())
        for _ in range(options.repetitions):
            for workers, threads in ((1, 1), (1, 2), (2, 1), (2, 2)):
                ids = stage.load(options.orders)
                rate = len(ids) / stage.drain(stage.schedule(ids), workers, threads)
                stage.assert_drained()
                name = f"this project, {_many(workers, 'worker')} of {_many(threads, 'thread')}"
                report.add(name, orders_per_s=rate)
            for connections in (1, 2):
                ids = stage.load(options.orders)
                rate = len(ids) / raw.statements(stage, ids, connections)
                name = f"limit: the statements alone, {_many(connections, 'connection')}"
                report.add(name, orders_per_s=rate)
            ids = stage.load(options.orders)
            report.add("limit: the scripts alone", orders_per_s=len(ids) / raw.scripts(stage, ids))
            for name, drain in peers.DRAINS.items():
                ids = stage.load(options.peer_orders)
                report.add(name, orders_per_s=drain(stage, ids))
        report.save()


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


if __name__ == "__main__":
    main()
