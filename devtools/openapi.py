# <openapi/>
"""Writes the description of the API: ``make openapi``."""

import argparse
import json

from devtools.processes import ROOT
from orders.app import create_app
from orders.config import Settings
from orders.features.openapi.document import document

FILE = ROOT / "docs" / "openapi.json"


def text() -> str:
    """What the routes and the errors that they declare say now."""
    app = create_app(
        Settings.of(database_url="postgresql+psycopg:///none", redis_url="redis://none")
    )
    try:
        return f"{json.dumps(document(app), indent=2, ensure_ascii=False)}\n"
    finally:
        app.extensions["orders"].close()


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m devtools.openapi", description=__doc__).parse_args()
    FILE.write_text(text())
