"""``python -m orders keys ...`` and ``... stock ...``, and what commands of features are made of."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click
from flask.cli import AppGroup
from pydantic import TypeAdapter, ValidationError

from orders.clients.domain import ApiKey, parted
from orders.db.ids import UUID
from orders.errors import OrderError
from orders.http.auth import services
from orders.http.schemas.stock import StockChangeIn
from orders.http.schemas.types import SKU
from worker.console import AS_JSON, DURATION, print_table

#: The length of the column.
MAX_NAME = 100

SCOPES = ["orders", "payments", "ops"]


class Command(click.Command):
    """A command that turns an error of the service, or in printing, into one line without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click knows
            raise
        except (OrderError, OSError, UnicodeError) as error:
            raise click.ClickException(str(error)) from error


class CommandGroup(AppGroup):
    """Commands of this kind."""

    command_class = Command


keys = CommandGroup("keys", help="API keys.")
stock = CommandGroup("stock", help="Stock on hand and prices.")


def _id_of(_context: object, _parameter: object, text: str) -> str:
    """The id of a key, which may have been pasted whole, with the line break after it."""
    found, _ = parted(text.strip())
    if not UUID.fullmatch(found):
        raise click.BadParameter(f"{found!r} is not a key's id: keys list shows them")
    return found


def time_of(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def check_client(name: str | None) -> None:
    """Raises ClientNotFound, so that a misspelt name is not taken for a client that has nothing."""
    if name is not None:
        services().clients.id_of(name)


T = TypeVar("T")


def print_list(
    found: Sequence[T], schema: Any, heads: str, row: Callable[[T], Sequence[str]], *, as_json: bool
) -> None:
    """Print a table, or each as the schema has it; ``heads`` are separated by two spaces."""
    if not as_json:
        print_table(heads.split("  "), map(row, found))
        return
    of = TypeAdapter(schema)
    for each in found:
        click.echo(of.dump_json(of.validate_python(each, from_attributes=True)))


def _print_key(key: str) -> None:
    """The key alone on standard output, for scripts."""
    click.echo(key)
    click.echo(f"Its id is {parted(key)[0]}.", err=True)


@keys.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES))
@click.option("--days", type=click.IntRange(1, 36_500), help="Days until it expires.")
@click.option("--label", help="Who or what it is for, such as: Anna, till 3.")
def create_key(name: str, scopes: tuple[str, ...], days: int | None, label: str | None) -> None:
    """Make an API key for the client NAME, which is created if new.

    Only a hash of it is stored, so it cannot be shown again.
    """
    for text in (name, label or "-"):
        if not 0 < len(text) <= MAX_NAME or not text.isprintable():
            raise click.BadParameter(
                f"a name has 1 to {MAX_NAME} printable characters, in one line"
            )
    expires_in = None if days is None else timedelta(days=days)
    _print_key(services().clients.create_key(name, sorted(set(scopes)), expires_in, label))


@keys.command("list")
@click.argument("name", required=False)
@AS_JSON
def list_keys(name: str | None, *, as_json: bool) -> None:
    """List the keys of the client NAME, or of all clients."""
    check_client(name)
    heads = "id  client  label  scopes  created  last used  expires"
    print_list(services().clients.list_keys(name), ApiKey, heads, _key_row, as_json=as_json)


def _key_row(key: ApiKey) -> tuple[str, ...]:
    expires = time_of(key.expires_at) + (" (expired)" if key.expired else "")
    used = (time_of(key.created_at), time_of(key.last_used_at), expires)
    return (key.id, key.client, key.label or "", " ".join(sorted(key.scopes)), *used)


@keys.command("revoke")
@click.argument("key_id", metavar="ID", callback=_id_of)
def revoke_key(key_id: str) -> None:
    """Revoke the key ID. It is refused everywhere within seconds."""
    key = services().clients.revoke(key_id)
    click.echo(f"{key.id} of {key.client} is revoked")


@keys.command("rotate")
@click.argument("key_id", metavar="ID", callback=_id_of)
@click.option(
    "--hours", type=click.IntRange(0, 8_760), default=24, help="How long the old key still works."
)
def rotate_key(key_id: str, hours: int) -> None:
    """Make a new key with the scopes and the lifetime of the key ID.

    The old one still works for --hours (24), unless it expires sooner.
    """
    _print_key(services().clients.rotate(key_id, timedelta(hours=hours)))


@stock.command("set")
@click.argument("sku")
@click.option("--on-hand", type=click.IntRange(min=0))
@click.option("--price-minor", type=click.IntRange(min=0))
@click.option("--currency", help="ISO 4217, like EUR")
@click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION,
    help="Of orders for it that ask for none, such as 15m; 0s: the service's default.",
)
def set_stock(sku: str, timeout_ms: int | None, **stock_and_price: Any) -> None:
    """Set a SKU's stock and price, its timeout, or all of them.

    Without --timeout, that stays as it is; with nothing else, the others do. Orders keep their deadlines.
    """
    given = {name: value for name, value in stock_and_price.items() if value is not None}
    if timeout_ms is not None:
        if timeout_ms % 1000:
            raise click.BadParameter("whole seconds only", param_hint="--timeout")
        given["timeout_seconds"] = timeout_ms // 1000 or None
    try:
        body = StockChangeIn.model_validate(given).root
        SKU.validate_python(sku)
    except ValidationError as error:
        [wrong, *_] = error.errors()
        field = ".".join(map(str, wrong["loc"][1:])) or "sku"
        raise click.ClickException(f"{field} {wrong['input']!r}: {wrong['msg']}") from error
    item, _ = services().stock.set(sku, **body.model_dump(exclude_unset=True))
    click.echo(f"{item.sku}: {item.on_hand} on hand, {item.reserved} reserved")
