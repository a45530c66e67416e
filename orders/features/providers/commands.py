"""``python -m orders providers ...``: endpoints that payment providers send signed webhooks to, and their messages."""

from collections.abc import Sequence
from datetime import timedelta

import click
from pydantic import TypeAdapter, ValidationError

from orders.commands import CommandGroup, check_client, print_list, time_of
from orders.features.operators import id_in
from orders.features.providers import reports
from orders.features.providers.domain import ProviderEndpoint
from orders.features.providers.schemas import ProviderMessageOut
from orders.features.providers.service import Message, Providers
from orders.features.signing.settings import SendingSettings
from orders.features.signing.urls import parsed
from orders.http.auth import services
from orders.http.schemas.types import Provider
from worker.console import AS_JSON

providers = CommandGroup("providers", help="Payment providers, which send signed webhooks.")


def _provider(_context: object, _parameter: object, text: str) -> str:
    try:
        return TypeAdapter[str](Provider).validate_python(text)
    except ValidationError as error:
        raise click.BadParameter("a provider's name is 1 to 50 of A-Z a-z 0-9 . _ -") from error


def _check_close_url(url: str | None) -> None:
    """Raises WebhookUrlNotAllowed."""
    if url is not None:
        parsed(url, allow_private=services().settings[SendingSettings].webhook_allow_private)


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
    endpoint, secret = services()[Providers].add(client, provider, close_url)
    click.echo(f"/v1/providers/{endpoint.id}/webhook\n{secret}")


@providers.command("list")
@click.argument("client", required=False)
@AS_JSON
def list_providers(client: str | None, *, as_json: bool) -> None:
    """List the endpoints of CLIENT, or of all clients, without their secrets."""
    check_client(client)
    found = services()[Providers].list_endpoints(client)
    heads = "id  client  provider  created  old secret until  revoked  close url"
    print_list(found, ProviderEndpoint, heads, _endpoint_row, as_json=as_json)


def _endpoint_row(each: ProviderEndpoint) -> tuple[str, ...]:
    moments = map(time_of, (each.created_at, each.old_secret_until, each.revoked_at))
    return (each.id, each.client, each.provider, *moments, each.close_url or "")


def _message_row(each: Message) -> tuple[str, ...]:
    received = time_of(each.created_at)
    return (each.id, each.client, each.provider, received, each.status, each.note)


def _print_messages(found: Sequence[Message], *, as_json: bool = False) -> None:
    heads = "id  client  provider  received  status  note"
    print_list(found, ProviderMessageOut, heads, _message_row, as_json=as_json)


@providers.command("inbox")
@AS_JSON
def list_messages(*, as_json: bool) -> None:
    """List the oldest messages that wait for a person: they could not be recorded. JSON has their bodies."""
    _print_messages(services()[Providers].messages("waiting", page_size=100), as_json=as_json)


@providers.command("replay")
@click.argument("message_id", metavar="ID", callback=id_in)
def replay_message(message_id: str) -> None:
    """Try again to record what the message ID reports."""
    _print_messages([reports.replay(services(), message_id)])


@providers.command("dismiss")
@click.argument("message_id", metavar="ID", callback=id_in)
def dismiss_message(message_id: str) -> None:
    """Settle the message ID by hand, so that it is no longer listed."""
    _print_messages([services()[Providers].dismiss(message_id)])


@providers.command("rotate")
@click.argument("endpoint_id", metavar="ID", callback=id_in)
@click.option(
    "--hours", type=click.IntRange(0, 8_760), default=24, help="How long the old one still works."
)
def rotate_provider(endpoint_id: str, hours: int) -> None:
    """Make a new secret for the endpoint ID. Prints only the secret.

    Messages signed with the old one are still accepted for --hours (24).
    """
    click.echo(services()[Providers].rotate(endpoint_id, timedelta(hours=hours)))


@providers.command("close-url")
@click.argument("endpoint_id", metavar="ID", callback=id_in)
@click.argument("url", required=False)
def set_close_url(endpoint_id: str, url: str | None) -> None:
    """Set where the provider of the endpoint ID is asked to close a payment; without URL, nowhere."""
    _check_close_url(url)
    endpoint = services()[Providers].set_close_url(endpoint_id, url)
    click.echo(f"{endpoint.id} of {endpoint.client}: {endpoint.close_url or 'not asked'}")


@providers.command("revoke")
@click.argument("endpoint_id", metavar="ID", callback=id_in)
def revoke_provider(endpoint_id: str) -> None:
    """Revoke the endpoint ID and delete its secrets. It is refused everywhere within seconds."""
    endpoint = services()[Providers].revoke(endpoint_id)
    click.echo(f"{endpoint.id} of {endpoint.client} is revoked")
