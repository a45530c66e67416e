"""``python -m orders keys ...``, ``... providers ...``, ``... stock ...`` and ``... why ...``"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click
from flask.cli import AppGroup, with_appcontext
from pydantic import TypeAdapter, ValidationError

from orders.clients.domain import ApiKey, parted
from orders.errors import OrderError
from orders.http import reports
from orders.http.auth import services
from orders.http.schemas.providers import ProviderMessageOut
from orders.http.schemas.stock import StockChangeIn
from orders.http.schemas.types import SKU, Provider
from orders.providers.domain import ProviderEndpoint, ProviderMessage
from orders.sql.ids import UUID
from orders.webhooks.urls import parsed
from orders.why import why
from worker.console import AS_JSON, DURATION, print_plain_table, replace_unprintable, shown

#: The length of the column.
MAX_NAME = 100

SCOPES = ["orders", "payments", "ops"]


class Command(click.Command):
    """A command that turns an error of the service, or in printing, into one line without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        replace_unprintable()
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click knows
            raise
        except (OrderError, OSError) as error:
            raise click.ClickException(str(error)) from error


class CommandGroup(AppGroup):
    """Commands of this kind."""

    command_class = Command


keys = CommandGroup("keys", help="API keys.")
providers = CommandGroup("providers", help="Payment providers, which send signed webhooks.")
stock = CommandGroup("stock", help="Stock on hand and prices.")


def _id_of(_context: object, _parameter: object, text: str) -> str:
    """The id of a key, which may have been pasted whole, with the line break after it."""
    found, _ = parted(text.strip())
    if not UUID.fullmatch(found):
        raise click.BadParameter(f"{found!r} is not a key's id: keys list shows them")
    return found


def _id_in(_context: object, _parameter: object, text: str) -> str:
    """The id of an order or a message, or of an endpoint, whose path may have been pasted whole."""
    if not (found := UUID.search(text.lower())):
        raise click.BadParameter(f"{text!r} is not an id: lists and searches show them")
    return found[0]


def _provider(_context: object, _parameter: object, text: str) -> str:
    try:
        return TypeAdapter[str](Provider).validate_python(text)
    except ValidationError as error:
        raise click.BadParameter("a provider's name is 1 to 50 of A-Z a-z 0-9 . _ -") from error


def _check_close_url(url: str | None) -> None:
    """Raises WebhookUrlNotAllowed."""
    if url is not None:
        parsed(url, allow_private=services().settings.webhook_allow_private)


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _check_client(name: str | None) -> None:
    """Raises ClientNotFound, so that a misspelt name is not taken for a client that has nothing."""
    if name is not None:
        services().clients.id_of(name)


T = TypeVar("T")


def print_list(
    found: Sequence[T], schema: Any, heads: str, row: Callable[[T], Sequence[str]], *, as_json: bool
) -> None:
    """Print a table, or each as the schema has it; ``heads`` are separated by two spaces."""
    if not as_json:
        print_plain_table(heads.split("  "), map(row, found))
        return
    of = TypeAdapter(schema)
    for each in found:
        click.echo(of.dump_json(of.validate_python(each, from_attributes=True)))


@click.command("why", cls=Command)
@click.argument("order_id", metavar="ID", callback=_id_in)
@with_appcontext
def say_why(order_id: str) -> None:
    """Say why the order ID is still unpaid: each cause on a line."""
    order = services().orders.order(None, order_id)
    for cause in why(services(), order_id) or [f"it is {order.status}"]:
        click.echo(shown(cause))


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
    _check_client(name)
    heads = "ID  CLIENT  LABEL  SCOPES  CREATED  LAST USED  EXPIRES"
    print_list(services().clients.list_keys(name), ApiKey, heads, _key_row, as_json=as_json)


def _key_row(key: ApiKey) -> tuple[str, ...]:
    expires = _time(key.expires_at) + (" (expired)" if key.expired else "")
    used = (_time(key.created_at), _time(key.last_used_at), expires)
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


@providers.command("add")
@click.argument("client")
@click.argument("provider", callback=_provider)
@click.option("--close-url", help="The URL at which it is asked to close a payment.")
def add_provider(client: str, provider: str, close_url: str | None) -> None:
    """Make an endpoint for webhooks of PROVIDER about orders of CLIENT.

    Prints its path and its secret, which it does not show again. Unlike an API key the secret is
    stored in plain text: verifying a signature requires the secret itself.
    """
    _check_close_url(close_url)
    endpoint, secret = services().providers.add(client, provider, close_url)
    click.echo(f"/v1/providers/{endpoint.id}/webhook\n{secret}")


@providers.command("list")
@click.argument("client", required=False)
@AS_JSON
def list_providers(client: str | None, *, as_json: bool) -> None:
    """List the endpoints of CLIENT, or of all clients, without their secrets."""
    _check_client(client)
    found = services().providers.list_endpoints(client)
    heads = "ID  CLIENT  PROVIDER  CREATED  OLD SECRET UNTIL  REVOKED  CLOSE URL"
    print_list(found, ProviderEndpoint, heads, _endpoint_row, as_json=as_json)


def _endpoint_row(each: ProviderEndpoint) -> tuple[str, ...]:
    moments = map(_time, (each.created_at, each.old_secret_until, each.revoked_at))
    return (each.id, each.client, each.provider, *moments, each.close_url or "")


def _message_row(each: ProviderMessage) -> tuple[str, ...]:
    received = _time(each.created_at)
    return (each.id, each.client, each.provider, received, each.status, each.note)


def _print_messages(found: Sequence[ProviderMessage], *, as_json: bool = False) -> None:
    heads = "ID  CLIENT  PROVIDER  RECEIVED  STATUS  NOTE"
    print_list(found, ProviderMessageOut, heads, _message_row, as_json=as_json)


@providers.command("inbox")
@AS_JSON
def list_messages(*, as_json: bool) -> None:
    """List the oldest messages that wait for a person: they could not be recorded. JSON has their bodies."""
    _print_messages(services().providers.messages("waiting", page_size=100), as_json=as_json)


@providers.command("replay")
@click.argument("message_id", metavar="ID", callback=_id_in)
def replay_message(message_id: str) -> None:
    """Try again to record what the message ID reports."""
    _print_messages([reports.replay(services(), message_id)])


@providers.command("dismiss")
@click.argument("message_id", metavar="ID", callback=_id_in)
def dismiss_message(message_id: str) -> None:
    """Settle the message ID by hand, so that it is no longer listed."""
    _print_messages([services().providers.dismiss(message_id)])


@providers.command("rotate")
@click.argument("endpoint_id", metavar="ID", callback=_id_in)
@click.option(
    "--hours", type=click.IntRange(0, 8_760), default=24, help="How long the old one still works."
)
def rotate_provider(endpoint_id: str, hours: int) -> None:
    """Make a new secret for the endpoint ID. Prints only the secret.

    Messages signed with the old one are still accepted for --hours (24).
    """
    click.echo(services().providers.rotate(endpoint_id, timedelta(hours=hours)))


@providers.command("close-url")
@click.argument("endpoint_id", metavar="ID", callback=_id_in)
@click.argument("url", required=False)
def set_close_url(endpoint_id: str, url: str | None) -> None:
    """Set where the provider of the endpoint ID is asked to close a payment; without URL, nowhere."""
    _check_close_url(url)
    endpoint = services().providers.set_close_url(endpoint_id, url)
    click.echo(f"{endpoint.id} of {endpoint.client}: {endpoint.close_url or 'not asked'}")


@providers.command("revoke")
@click.argument("endpoint_id", metavar="ID", callback=_id_in)
def revoke_provider(endpoint_id: str) -> None:
    """Revoke the endpoint ID and delete its secrets. It is refused everywhere within seconds."""
    endpoint = services().providers.revoke(endpoint_id)
    click.echo(f"{endpoint.id} of {endpoint.client} is revoked")


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
