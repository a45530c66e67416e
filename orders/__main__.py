"""``order-timeout-orders`` and ``python -m orders``: migrations, API keys, stock, and what features bring."""

import click
from flask.cli import ScriptInfo

from orders.app import commands, create_app
from orders.db.migrate import migrate


def main() -> None:
    """Run the command line. It makes the application, which needs settings, only for a command that uses it."""
    help_ = "The order service. DATABASE_URL and REDIS_URL say where its servers are."
    click.Group(commands=[migrate, *commands()], help=help_)(obj=ScriptInfo(create_app=create_app))


if __name__ == "__main__":
    main()
