"""``order-timeout-orders`` and ``python -m orders``: migrations, API keys, providers and stock."""

from flask.cli import FlaskGroup

from orders.app import create_app
from orders.sql.migrate import migrate


def main() -> None:
    """Run the command line. It imports nothing from the current folder, unlike ``flask --app``."""
    group = FlaskGroup(
        create_app=create_app,
        add_version_option=False,
        load_dotenv=False,
        help="The order service. DATABASE_URL and REDIS_URL say where its servers are.",
    )
    group.add_command(migrate)
    group()


if __name__ == "__main__":
    main()
