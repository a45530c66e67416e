"""A report at two o'clock each night, in a time zone whose clocks change.

python -m examples nightly_report
python -m worker run examples.nightly_report:flows    # with REDIS_URL
"""

import time

from examples.stage import working
from worker import DelayQueue, Recurring, Task, connect


def make_report(task: Task) -> None:
    """Runs once each night, on any number of workers. A failed run does not affect later ones."""
    print("report for", task.id)


def flows(cron: str = "0 2 * * *", name: str = "report") -> list[Recurring]:
    return [Recurring(name, cron=cron, timezone="Europe/Berlin", handler=make_report)]


def play(redis_url: str) -> None:
    """Print the next nights, then make two reports on a schedule of seconds."""
    [nightly] = flows()
    night = nightly.schedule.after(time.time_ns() // 1_000_000)
    for _ in range(3):
        print("next:", night.id)
        night = nightly.schedule.after(night.due_at_ms)
    with working(redis_url, *flows("* * * * * *", "example-report")) as worker:
        while worker.counts["done"] < 2:
            time.sleep(0.05)
    with connect(redis_url) as client:
        DelayQueue(client, "example-report").destroy()  # the next run is scheduled there
