"""``python -m orders export ...`` and ``erase ...``: a person's data, shown, and taken out of orders."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click
from flask.cli import with_appcontext

from orders.commands import Command
from orders.db.ids import is_uuid
from orders.db.statements import Position
from orders.errors import OrderError
from orders.features.operators import answering
from orders.features.retention.service import Retention
from orders.http.auth import services
from orders.http.schemas.types import rfc3339
from worker import Scheduled

#: How many orders are looked up at a time.
PAGE_SIZE = 100

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _ids(_context: object, _parameter: object, given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        if not is_uuid(text.lower()):
            raise click.BadParameter(f"{text!r} is not an order's id")
    return tuple(text.lower() for text in given)


def _of_orders(command: Decorated) -> Decorated:
    """What says which orders a command is about."""
    command = click.option("--reference", help="Its orders with this client_reference.")(command)
    command = click.option("--client", help="The client, for --reference.")(command)
    return click.argument("order_ids", nargs=-1, metavar="[ORDER...]", callback=_ids)(command)


def _chosen(order_ids: Sequence[str], client: str | None, reference: str | None) -> list[str]:
    """The ids of these orders, and of those of the client that have the reference."""
    if (client is None) != (reference is None) or not (order_ids or client):
        raise click.UsageError("name orders by their ids, or by --client and --reference")
    found = [*order_ids]
    if client is not None:
        client_id = services().clients.id_of(client)
        after: Position | None = None
        while page := services().orders.orders(
            client_id, client_reference=reference, page_size=PAGE_SIZE, after=after
        ):
            found += [order.id for order in page]
            after = Position(page[-1].created_at, page[-1].id)
    if not found:
        raise click.ClickException(f"{client} has no order with that reference")
    return found


def _plain(value: bytes | datetime) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else rfc3339(value)


@click.command("export", cls=Command)
@_of_orders
@with_appcontext
def export(order_ids: tuple[str, ...], client: str | None, reference: str | None) -> None:
    """Print a person's data, one JSON object for each order: all that erase would erase from SQL."""
    _for_each(
        _chosen(order_ids, client, reference),
        lambda id_: json.dumps(services()[Retention].export(id_), default=_plain),
    )


@click.command("erase", cls=Command)
@_of_orders
@with_appcontext
def erase(order_ids: tuple[str, ...], client: str | None, reference: str | None) -> None:
    """Erase a person's data from orders: client_reference, metadata, and what was sent and received.

    Amounts and the references at payment providers stay: refunds need them.
    """
    _for_each(_chosen(order_ids, client, reference), _erased)


def _for_each(order_ids: Sequence[str], say: Callable[[str], str]) -> None:
    """Print a line for each order. At the end, list those that failed by id: their references may be gone."""
    left = []
    for order_id in order_ids:
        try:
            click.echo(say(order_id))
        except OrderError as error:
            click.echo(f"{order_id}: {error}", err=True)
            left.append(order_id)
    if left:
        raise click.ClickException(f"not done: {' '.join(left)}")


def _erased(order_id: str) -> str:
    try:
        found = services()[Retention].erase(order_id)
    finally:  # whatever SQL says: errors that quote the order are kept with its check, and in its dead letter
        with answering():
            queue = services().queue
            # Whoever holds it loses it. It then quotes what is left, if it fails again.
            while queue.schedule(order_id, delay_ms=0) is Scheduled.DEAD:
                queue.requeue([order_id])
    said = f"{order_id}: erased, with {found.messages} messages"
    if not found.waiting:
        return said
    return f"{said}; {found.waiting} messages wait in the inbox: settle them, then erase {order_id} again"
