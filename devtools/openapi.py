"""Writes the description of the API: ``make openapi``."""

import argparse

from orders.app import create_app
from orders.config import Settings
from orders.http.openapi import FILE, written


def text() -> str:
    """What the routes and the errors that they declare say now."""
    app = create_app(Settings(database_url="postgresql+psycopg:///none", redis_url="redis://none"))
    try:
        return written(app)
    finally:
        app.extensions["orders"].close()


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m devtools.openapi", description=__doc__).parse_args()
    FILE.write_text(text())
