"""``flask --app orders.app keys ...`` and ``... stock ...``"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import click
from flask.cli import AppGroup
from pydantic import TypeAdapter, ValidationError

from orders.domain import ApiKey
from orders.errors import OrderError
from orders.routes.shared import services
from orders.schemas.stock import StockIn
from orders.schemas.types import Sku

#: What the column holds.
MAX_NAME = 100

SCOPES = ["orders", "payments", "ops"]

keys = AppGroup("keys", help="API keys.")
stock = AppGroup("stock", help="What is on the shelf.")


def _id_of(_context: object, _parameter: object, text: str) -> str:
    """The id of a key, which may have been pasted whole."""
    return text.partition(".")[0]


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


@contextmanager
def _said() -> Iterator[None]:
    """What the service refuses is said in a line."""
    try:
        yield
    except OrderError as error:
        raise click.ClickException(str(error)) from error


@keys.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES))
@click.option("--days", type=click.IntRange(1, 36_500), help="Days until it expires.")
def create_key(name: str, scopes: tuple[str, ...], days: int | None) -> None:
    """Make an API key for the client NAME, which is created if new. Prints only the key.

    Only a hash of it is stored, so it cannot be shown again.
    """
    if not 0 < len(name) <= MAX_NAME:
        raise click.BadParameter(f"a name has 1 to {MAX_NAME} characters")
    expires_in = None if days is None else timedelta(days=days)
    with _said():
        click.echo(services().clients.create_key(name, sorted(set(scopes)), expires_in))


@keys.command("list")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_keys(name: str | None, as_json: bool) -> None:  # noqa: FBT001  click's
    """List the keys of the client NAME, or of all clients."""
    with _said():
        found = services().clients.list_keys(name)
    if as_json:
        for key in found:
            click.echo(TypeAdapter(ApiKey).dump_json(key))
        return
    rows = [("ID", "CLIENT", "SCOPES", "CREATED", "LAST USED", "EXPIRES")]
    for key in found:
        expires = _time(key.expires_at) + (" (expired)" if key.expired else "")
        scopes = " ".join(sorted(key.scopes))
        rows.append(
            (key.id, key.client, scopes, _time(key.created_at), _time(key.last_used_at), expires)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@keys.command("revoke")
@click.argument("key_id", metavar="ID", callback=_id_of)
def revoke_key(key_id: str) -> None:
    """Revoke the key ID. It is refused everywhere within seconds."""
    with _said():
        key = services().clients.revoke(key_id)
    click.echo(f"{key.id} of {key.client} is revoked")


@keys.command("rotate")
@click.argument("key_id", metavar="ID", callback=_id_of)
@click.option(
    "--hours", type=click.IntRange(0, 8_760), default=24, help="How long the old key still works."
)
def rotate_key(key_id: str, hours: int) -> None:
    """Make a key with the scopes and the lifetime of the key ID and print it alone.

    The old one still works for --hours (24), unless it expires sooner.
    """
    with _said():
        click.echo(services().clients.rotate(key_id, timedelta(hours=hours)))


@stock.command("set")
@click.argument("sku")
@click.option("--on-hand", type=click.IntRange(min=0), required=True)
@click.option("--price-minor", type=click.IntRange(min=0), required=True)
@click.option("--currency", required=True, help="ISO 4217, like EUR")
def set_stock(sku: str, on_hand: int, price_minor: int, currency: str) -> None:
    """Set a SKU's stock and price."""
    try:
        body = StockIn(on_hand=on_hand, price_minor=price_minor, currency=currency)
        item = services().stock.set(TypeAdapter(Sku).validate_python(sku), **body.model_dump())
    except (OrderError, ValidationError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{item.sku}: {item.on_hand} on hand, {item.reserved} reserved")
