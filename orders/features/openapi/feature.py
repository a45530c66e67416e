"""The API's description at /openapi.json; and at /docs Swagger UI with it, which works without the internet."""

import json
from functools import cache, partial
from pathlib import Path

import flask_swagger_ui
from flask import Flask, Response, current_app, send_from_directory

from orders.feature import Feature
from orders.features.openapi.document import JSON, document

STATIC = Path(__file__).parent / "static"
SWAGGER = Path(flask_swagger_ui.__file__).parent / "dist"
#: The page loads nothing from other hosts, runs no inline scripts, and may not be framed.
PAGE = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def install(app: Flask) -> None:
    @cache
    def text() -> bytes:
        return json.dumps(document(app)).encode()

    def described() -> Response:
        return current_app.response_class(text(), mimetype=JSON)

    app.add_url_rule("/openapi.json", "openapi", described)

    def page() -> Response:
        response = send_from_directory(STATIC, "index.html")
        response.headers.update(PAGE)
        return response

    app.add_url_rule("/docs", "docs", page)
    app.add_url_rule("/docs/page/<path>", "docs_page", partial(send_from_directory, STATIC))
    assets = partial(send_from_directory, SWAGGER, max_age=86_400)
    app.add_url_rule("/docs/assets/<path:path>", "docs_asset", assets)


FEATURE = Feature(name="openapi", install=install)
