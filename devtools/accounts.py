"""Who may call the API of the orders."""

from collections.abc import Mapping

from devtools.processes import run


def create_key(env: Mapping[str, str], name: str, *scopes: str) -> str:
    """Create an API key and return it."""
    options = [option for scope in scopes for option in ("--scope", scope)]
    return run(["orders", "keys", "create", name, *options], env).strip()


# <providers>
def add_provider(env: Mapping[str, str], client: str, provider: str) -> tuple[str, str]:
    """Create an endpoint for a provider's webhooks; return its path and secret."""
    command = ["flask", "--app", "orders.app", "providers", "add", client, provider]
    path, secret = run(command, env).split()
    return path, secret


# </providers>
