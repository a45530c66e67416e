"""``python -m orders freeze ...``, ``freezes`` and ``thaw``: cancellations, stopped by operators."""

import click
from flask.cli import with_appcontext
from pydantic import TypeAdapter, ValidationError

from orders.commands import Command, print_list
from orders.features.freezes.domain import COMMAND_LINE, GIVE_BACK_SECONDS, Freeze, FreezeState
from orders.features.freezes.schemas import FreezeOut, Reason
from orders.features.freezes.service import Freezes
from orders.features.operators import id_in
from orders.features.parts import time_of
from orders.http.auth import services
from worker.console import AS_JSON, DURATION

#: How many freezes are listed.
MOST_LISTED = 100

REASON = TypeAdapter[str](Reason)


def _seconds(_context: object, _parameter: object, ms: int) -> int:
    return ms // 1000


def _reason(_context: object, _parameter: object, text: str) -> str:
    try:
        return str(REASON.validate_python(text))
    except ValidationError as error:
        raise click.BadParameter("it is 1 to 200 printable characters") from error


@click.command("freeze", cls=Command)
@click.option("--reason", required=True, callback=_reason, help="Why, for people to read.")
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    callback=_seconds,
    required=True,
    help="How long: 90s, 15m, 1h.",
)
@click.option("--client", help="Only orders of this client.")
@click.option(
    "--give-back",
    type=DURATION,
    callback=_seconds,
    default=f"{GIVE_BACK_SECONDS}s",
    help="How long its orders have left, at least, when it ends (5m).",
)
@with_appcontext
def freeze(reason: str, seconds: int, client: str | None, give_back: int) -> None:
    """Stop cancellations by timeout, of all orders or of one client's.

    Orders can still be placed, paid, extended and cancelled by hand.
    """
    made, _ = services()[Freezes].open(
        client, reason=reason, by=COMMAND_LINE, seconds=seconds, give_back_seconds=give_back
    )
    count = services()[Freezes].count(made.client, made.deadline)
    until = time_of(made.ends_at)
    click.echo(f"{made.id}: {made.scope}, until {until}; {count} orders concerned")


@click.command("freezes", cls=Command)
@click.option("--all", "every", is_flag=True, help="Also recent ones that are over.")
@AS_JSON
@with_appcontext
def list_freezes(*, every: bool, as_json: bool) -> None:
    """List the freezes that are open or giving back time."""
    service = services()[Freezes]
    found = service.page(page_size=MOST_LISTED) if every else service.in_force()
    heads = "id  state  scope  ends  orders  by  reason"
    print_list(found, FreezeOut, heads, _row, as_json=as_json)


def _row(each: Freeze) -> tuple[str, ...]:
    # Of those in force, how many are concerned; of the others, how many got time back.
    is_over = each.state is FreezeState.OVER
    orders = each.given_back if is_over else services()[Freezes].count(each.client, each.deadline)
    facts = (each.scope, time_of(each.ends_at), str(orders), each.opened_by, each.reason)
    return (each.id, each.state, *facts)


@click.command("thaw", cls=Command)
@click.argument("freeze_id", metavar="ID", callback=id_in)
@with_appcontext
def thaw(freeze_id: str) -> None:
    """End the freeze ID. Its orders get their time back before any of them is cancelled."""
    ended = services()[Freezes].thaw(freeze_id, by=COMMAND_LINE)
    click.echo(
        f"{ended.id} is {ended.state}: its orders expire at {time_of(ended.deadline)} or later"
    )
