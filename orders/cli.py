"""``flask --app orders.app keys ...`` and ``... stock ...``"""

import click
from flask.cli import AppGroup
from pydantic import TypeAdapter, ValidationError

from orders.api import services
from orders.errors import OrderError
from orders.schemas import Sku, StockIn

#: What the column holds.
MAX_NAME = 100

keys = AppGroup("keys", help="API keys.")
stock = AppGroup("stock", help="What is on the shelf.")


@keys.command("create")
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(["orders", "ops"])
)
def create_key(name: str, scopes: tuple[str, ...]) -> None:
    """Make an API key and print it, alone: it is kept nowhere."""
    if not 0 < len(name) <= MAX_NAME:
        raise click.BadParameter(f"a name has 1 to {MAX_NAME} characters")
    try:
        click.echo(services().orders.create_key(name, sorted(set(scopes))))
    except OrderError as error:
        raise click.ClickException(str(error)) from error


@stock.command("set")
@click.argument("sku")
@click.option("--on-hand", type=click.IntRange(min=0), required=True)
@click.option("--price-minor", type=click.IntRange(min=0), required=True)
@click.option("--currency", required=True, help="ISO 4217, like EUR")
def set_stock(sku: str, on_hand: int, price_minor: int, currency: str) -> None:
    """Set a SKU's stock and price."""
    try:
        body = StockIn(on_hand=on_hand, price_minor=price_minor, currency=currency)
        item = services().orders.set_stock(
            TypeAdapter(Sku).validate_python(sku), **body.model_dump()
        )
    except (OrderError, ValidationError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{item.sku}: {item.on_hand} on hand, {item.reserved} reserved")
