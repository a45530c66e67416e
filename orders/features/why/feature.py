"""Why an order is still unpaid: a command, a field of the order for operators, and a check of the doctor."""

from collections.abc import Iterable
from functools import partial

import click
import sqlalchemy as sa
from flask.cli import with_appcontext

from orders.commands import Command
from orders.feature import Feature
from orders.features.operators import id_in
from orders.features.why.causes import why
from orders.features.why.locked import lockers
from orders.http.auth import services
from orders.wiring import Services
from worker import Finding
from worker.console import shown
from worker.findings import ok, warning


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
    found = lockers(sql)
    if not found:
        return ok("orders.locked", "nobody has held a lock for long")
    advice = (
        "Orders may be waiting for it. See what that connection does (pg_stat_activity), and end it if it is stuck: "
        "SELECT pg_terminate_backend(PID)."
    )
    return warning("orders.locked", "; ".join(map(str, found)), advice)


def wire(services: Services) -> Iterable[object]:
    services.hooks.why.append(partial(why, services))
    services.hooks.locked.append(lockers)
    return ()


FEATURE = Feature(name="why", wire=wire, commands=(say_why,), checks=((_check, "orders.locked"),))
