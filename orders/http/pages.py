"""The page at /docs: Swagger UI with the API's description. It works without the internet."""

from functools import partial
from pathlib import Path

import flask_swagger_ui
from flask import Flask, send_from_directory

FOLDER = Path(__file__).parent / "page"
SWAGGER = Path(flask_swagger_ui.__file__).parent / "dist"


def install(app: Flask) -> None:
    """Serve the page and its files from ``app``."""
    app.add_url_rule("/docs", "docs", partial(send_from_directory, FOLDER, "index.html"))
    app.add_url_rule("/docs/page/<path>", "docs_page", partial(send_from_directory, FOLDER))
    assets = partial(send_from_directory, SWAGGER, max_age=86_400)
    app.add_url_rule("/docs/assets/<path:path>", "docs_asset", assets)
