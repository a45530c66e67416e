"""The Flask application."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any

import click
from flask import Flask
from flask.cli import ScriptInfo
from werkzeug.routing import BaseConverter, UUIDConverter

from orders.commands import keys
from orders.commands import stock as stock_commands
from orders.config import MAX_BODY_BYTES, Settings
from orders.errors import SettingsInvalid
from orders.feature import features
from orders.http import headers, problems
from orders.http.routes.health import health
from orders.http.routes.orders import orders
from orders.http.routes.payments import payments
from orders.http.routes.stock import stock
from orders.http.strict_json import StrictRequest
from orders.wiring import bootstrap, process_settings


class Id(BaseConverter):
    """An id in a path, as text."""

    regex = UUIDConverter.regex

    def to_python(self, value: str) -> str:
        return value.lower()


class Application(Flask):
    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Of these functions none is a coroutine, for which Flask looks in each request."""
        return func


def commands() -> Iterator[click.Command]:
    """Of ``python -m orders`` and ``flask --app orders.app``."""
    yield from (keys, stock_commands)
    for feature in features():
        yield from feature.commands


def create_app(settings: Settings | None = None) -> Flask:
    """The application.

    Called without settings, as by granian and flask, it is the process's entry point: it reads them
    from the environment and configures logging. Raises SettingsInvalid.
    """
    app = Application(__name__, static_folder=None)
    app.request_class = StrictRequest
    app.url_map.converters["uuid"] = Id
    # Otherwise a path with two slashes is redirected, to whatever host the request named.
    app.url_map.merge_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's own provider
    with _in_one_line():
        wired = bootstrap(settings or process_settings(os.environ))
        app.extensions["orders"] = wired
        if settings is None and _command() in (None, "run"):
            for feature in features():
                feature.serve(app, wired)
    headers.install(app)
    problems.install(app)
    for blueprint in (orders, payments, stock, health):
        app.register_blueprint(blueprint)
    for feature in features():
        for blueprint in feature.routes:
            app.register_blueprint(blueprint)
        feature.install(app)
    for command in commands():
        app.cli.add_command(command)
    # What a server's process has loaded by now stays. Searching it for garbage takes 0.1 s, in which no
    # request is answered.
    if settings is None and parent_process():
        gc.collect()
        gc.freeze()
    return app


def _command() -> str | None:
    """The command that this process runs, if it is one."""
    context = click.get_current_context(silent=True)
    return context.info_name if context and context.find_object(ScriptInfo) else None


@contextmanager
def _in_one_line() -> Iterator[None]:
    """In a command or granian's worker, SettingsInvalid ends the process with one line and status 1."""
    try:
        yield
    except SettingsInvalid as error:
        if _command() or parent_process():
            raise SystemExit(f"Error: {error}") from error
        raise
