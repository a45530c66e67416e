"""``python -m orders erase ...``: a person's data, taken out of orders."""

import click
from flask.cli import with_appcontext

from orders.cli import Command
from orders.http.auth import services
from orders.sql.ids import is_uuid


def _ids(_context: object, _parameter: object, given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        if not is_uuid(text.lower()):
            raise click.BadParameter(f"{text!r} is not an order's id")
    return tuple(text.lower() for text in given)


@click.command("erase", cls=Command)
@click.argument("order_ids", nargs=-1, required=True, metavar="ORDER...", callback=_ids)
@with_appcontext
def erase(order_ids: tuple[str, ...]) -> None:
    """Erase a person's data from orders: client_reference, metadata, and what was sent and received.

    Amounts and the references at payment providers stay: refunds need them.
    """
    for order_id in order_ids:
        erased = services().retention.erase(order_id)
        click.echo(f"{order_id}: erased, also from {erased.messages} messages of providers")
        if erased.waiting:
            click.echo(
                f"{order_id}: {erased.waiting} messages wait in the inbox: settle them, then repeat"
            )
