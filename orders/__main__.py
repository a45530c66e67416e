"""``order-timeout-orders`` and ``python -m orders``: migrations, API keys, stock, and what features bring."""

import click
from flask.cli import FlaskGroup

from orders.app import commands, create_app
from orders.db.migrate import migrate


class LazyCommands(FlaskGroup):
    """Knows its commands without making the application, which needs settings."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return click.Group.list_commands(self, ctx)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return click.Group.get_command(self, ctx, name)


def main() -> None:
    """Run the command line. It imports nothing from the current folder, unlike ``flask --app``."""
    group = LazyCommands(
        create_app=create_app,
        add_version_option=False,
        load_dotenv=False,
        help="The order service. DATABASE_URL and REDIS_URL say where its servers are.",
    )
    for command in (migrate, *commands()):
        group.add_command(command)
    group()


if __name__ == "__main__":
    main()
