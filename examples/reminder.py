"""Reminders: the day before an appointment, and ten minutes before an order expires.

python -m examples reminder
"""

from datetime import UTC, datetime, timedelta

from examples.stage import wait_until_empty, working
from worker import DelayQueue, Flow, Task, connect, one_at_a_time

DAY = timedelta(days=1)
TEN_MINUTES = timedelta(minutes=10)


def remind(task: Task) -> None:
    """Send one reminder. Pass task.idempotency_key on to the service that sends it."""
    print(f"to {task.payload.decode()}: {task.id}")


def flow() -> Flow:
    return Flow(name="reminders", handler=one_at_a_time(remind))


def _epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def appointment_made(queue: DelayQueue, name: str, at: datetime, address: str) -> None:
    """Remind a day before. Calling this again with another time moves the reminder."""
    queue.schedule(f"appointment {name}", _epoch_ms(at - DAY), address.encode())


def appointment_cancelled(queue: DelayQueue, name: str) -> None:
    queue.cancel(f"appointment {name}")


def order_placed(queue: DelayQueue, order_id: str, expires_at: datetime, address: str) -> None:
    """Remind ten minutes before. Cancel it when the order is paid, as for an appointment."""
    queue.schedule(
        f"order {order_id} expires soon", _epoch_ms(expires_at - TEN_MINUTES), address.encode()
    )


def play(redis_url: str) -> None:
    """An appointment in a day and two seconds, and an order with ten minutes and one second left."""
    with connect(redis_url) as client, working(redis_url, flow()):
        queue = DelayQueue(client, "reminders")
        now = datetime.now(UTC)
        appointment_made(queue, "check-up", now + DAY + timedelta(seconds=2), "ada@example.org")
        order_placed(queue, "7", now + TEN_MINUTES + timedelta(seconds=1), "bob@example.org")
        wait_until_empty(queue)
