"""Why an order is still unpaid: a command, a field of the order for operators, and a warning in the worker's log."""

from collections.abc import Iterable, Iterator
from functools import partial

import click
import sqlalchemy as sa
from flask.cli import with_appcontext

from orders.commands import Command
from orders.feature import Feature
from orders.features.operators import id_in
from orders.features.why.causes import why
from orders.features.why.locked import LockLog, locked_rows
from orders.http.auth import services
from orders.wiring import Services
from worker import Finding, Flow
from worker.console import shown
from worker.findings import failure, ok


@click.command("why", cls=Command)
@click.argument("order_id", metavar="ID", callback=id_in)
@with_appcontext
def say_why(order_id: str) -> None:
    """Say why the order ID is still unpaid: each cause on a line."""
    causes = why(services(), order_id, services().engine)
    if not causes:
        causes = [f"it is {services().orders.order(None, order_id).status}"]
    for cause in causes:
        click.echo(shown(cause))


def _check(sql: sa.Connection) -> Finding:
    rows = locked_rows(sql)
    if not rows:
        return ok("orders.locked", "no overdue order waits for a locked row")
    advice = (
        "See what that connection does (pg_stat_activity), and end it if it is stuck: "
        "SELECT pg_terminate_backend(PID)."
    )
    return failure("orders.locked", "; ".join(map(str, rows)), advice)


def wire(services: Services) -> Iterable[object]:
    services.hooks.why.append(partial(why, services))
    services.hooks.locked.append(locked_rows)
    return ()


def flows(services: Services) -> Iterator[Flow]:
    log = LockLog(services.watching)
    services.hooks.when_blocked.append(log.suspect)
    services.hooks.ticks.append(log.tick)
    yield from ()


FEATURE = Feature(
    name="why", wire=wire, flows=flows, commands=(say_why,), checks=((_check, "orders.locked"),)
)
