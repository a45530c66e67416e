"""The Flask application."""

import gc
import os
import tempfile
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import click
from flask import Flask
from flask.cli import ScriptInfo
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import BaseConverter, UUIDConverter

from orders import cli
from orders.bootstrap import Services, bootstrap, counting, process_settings, serve_metrics, tracing
from orders.config import MAX_BODY_BYTES, Settings
from orders.errors import SettingsInvalid
from orders.freezes.commands import freeze, list_freezes, thaw
from orders.freezes.signs import Signs, start_signing
from orders.http import headers, openapi, pages, problems
from orders.http.routes.attempts import attempts
from orders.http.routes.freezes import freezes
from orders.http.routes.health import health
from orders.http.routes.orders import orders
from orders.http.routes.payments import payments
from orders.http.routes.providers import providers
from orders.http.routes.stock import stock
from orders.http.routes.webhooks import webhooks
from orders.http.strict_json import StrictRequest
from orders.ops import routes as ops
from orders.retention.commands import erase, export
from orders.watch.shared_counts import DIRECTORY, prepared

#: Of ``python -m orders`` and ``flask --app orders.app``.
COMMANDS: tuple[click.Command, ...] = (
    *(cli.keys, cli.providers, cli.stock),
    *(cli.say_why, freeze, list_freezes, thaw, export, erase),
)


class Id(BaseConverter):
    """An id in a path, as text."""

    regex = UUIDConverter.regex

    def to_python(self, value: str) -> str:
        return value.lower()


class OrdersApp(Flask):
    """Reads JSON strictly."""

    request_class = StrictRequest

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Skips Flask's check for coroutines, seven in each request: no function here is one."""
        return func


def create_app(settings: Settings | None = None) -> Flask:
    """The application.

    Called without settings, as by granian and flask, it is the process's entry point: it reads them
    from the environment and configures logging. Raises SettingsInvalid.
    """
    app = OrdersApp(__name__, static_folder=None)
    app.url_map.converters["uuid"] = Id
    # Otherwise a path with two slashes is redirected, to whatever host the request named.
    app.url_map.merge_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's own provider
    app.extensions["orders"] = bootstrap(settings) if settings else _from_environment(app)
    proxies = app.extensions["orders"].settings.trusted_proxies
    if proxies:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=proxies, x_proto=0)  # type: ignore[method-assign]
    if settings is None and tracing(os.environ).on:
        from orders.http import request_spans  # noqa: PLC0415  optional

        request_spans.install(app)
    headers.install(app)
    problems.install(app)
    openapi.install(app)
    pages.install(app)
    for blueprint in (
        *(orders, payments, attempts, providers),
        *(stock, webhooks, freezes, health),
    ):
        app.register_blueprint(blueprint)
    ops.install(app)
    for command in COMMANDS:
        app.cli.add_command(command)
    # What a server's process has loaded by now stays. Searching it for garbage takes 0.1 s, in which no
    # request is answered.
    if settings is None and parent_process():
        gc.collect()
        gc.freeze()
    return app


def _from_environment(app: Flask) -> Services:
    """Raises SettingsInvalid; in a command or a server's worker, an error that ends the process
    with one line.
    """
    context = click.get_current_context(silent=True)
    command = context.info_name if context and context.find_object(ScriptInfo) else None
    try:
        settings = process_settings(os.environ)
        if command and command != "run":  # it serves nothing
            return bootstrap(settings)
        services = (
            _bootstrap_counting(app, settings) if settings.metrics_port else bootstrap(settings)
        )
        start_signing(Signs(services.engine), lambda: services.readiness.get().problem is None)
        return services
    except SettingsInvalid as error:
        if command:
            raise click.ClickException(str(error)) from error
        if parent_process():  # granian's worker: its process ends with this line and status 1
            raise SystemExit(f"Error: {error}") from error
        raise


def _bootstrap_counting(app: Flask, settings: Settings) -> Services:
    """Wire the service, and serve its metrics. Raises SettingsInvalid."""
    default = Path(tempfile.gettempdir()) / f"order-timeout-metrics-{settings.metrics_port}"
    os.environ[DIRECTORY] = str(prepared(Path(settings.metrics_dir or default)))
    try:
        from orders.watch.metrics import ApiMetrics  # noqa: PLC0415  reads the variable
    except ModuleNotFoundError as error:
        raise SettingsInvalid("METRICS_PORT needs prometheus-client.") from error
    services = bootstrap(settings, counting())
    metrics = ApiMetrics(settings, services.engine, services.watching)
    metrics.install(app)
    serve_metrics(settings, metrics.page)
    return services
