"""The page at /docs: Swagger UI with the API's description, or with a guide. It works without the internet."""

import re
from functools import partial
from pathlib import Path

import flask_swagger_ui
from flask import Flask, Response, abort, jsonify, send_from_directory

FOLDER = Path(__file__).parent / "page"
#: The repository's docs.
GUIDES = Path(__file__).parents[1] / "guides"
SWAGGER = Path(flask_swagger_ui.__file__).parent / "dist"

#: A link to a page beside this one, to a file elsewhere in the repository, or to what this server has.
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|/)([^)#]*)(#[^)]*)?\)")


def install(app: Flask) -> None:
    """Serve the page and its files from ``app``."""
    app.add_url_rule("/docs", "docs", partial(send_from_directory, FOLDER, "index.html"))
    app.add_url_rule("/docs/page/<path>", "docs_page", partial(send_from_directory, FOLDER))
    assets = partial(send_from_directory, SWAGGER, max_age=86_400)
    app.add_url_rule("/docs/assets/<path:path>", "docs_asset", assets)
    app.add_url_rule("/docs/guides/<name>", "guide", guide)


def guide(name: str) -> Response:
    """A guide, as Swagger UI can show it: it describes an API without operations."""
    if name not in {file.stem for file in GUIDES.glob("*.md")}:
        abort(404)
    title, _, text = (GUIDES / f"{name}.md").read_text().partition("\n")
    described = LINK.sub(_link, text)
    info = {"title": title.removeprefix("# "), "version": "", "description": described}
    return jsonify(openapi="3.1.0", info=info, paths={})


def _link(found: re.Match[str]) -> str:
    text, path, anchor = found.groups()
    if path == "openapi.json":
        return f"[{text}](/openapi.json)"
    if path.endswith(".md") and "/" not in path:
        return f"[{text}](/docs?guide={path.removesuffix('.md')}{anchor or ''})"
    return text  # what only the repository has
