"""How many functions a create calls, in Python and in C: proportional to its CPU time, without the noise.

    python -m benchmarks.calls [--requests 50]

Three applications are called through WSGI, without a server: this project's, a tutorial's, and the
smallest that does the same, one function that checks a key, parses strictly, validates, and sends
the create's own statement through psycopg.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from flask import Flask
from werkzeug.test import EnvironBuilder

from benchmarks import bare
from benchmarks.http import Baskets
from benchmarks.report import Report
from benchmarks.scene import EARLIER, Scene, scene
from devtools.accounts import create_key
from orders.app import create_app

WARM_UP = 50
Environ = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="How many functions a create calls.")
    parser.add_argument("--requests", type=int, default=50)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("calls", stage.settings())
        for items in (1, 5, 50):
            for name, calls in _rows(stage, Baskets(items), options.requests):
                report.add(name, **{f"{Baskets(items)}".replace(" ", "_"): calls})
        report.save()


def _rows(stage: Scene, baskets: Baskets, requests: int) -> Iterator[tuple[str, float]]:
    stage.load(EARLIER, items=baskets.items, paid_share=1)
    key = create_key(stage.env, "calls", "orders")
    os.environ.update(stage.env)
    [[customer]] = stage.rows("SELECT id FROM api_clients WHERE name = 'calls'")
    lines = iter(baskets)

    def own() -> Environ:
        items = [{"sku": sku, "quantity": 1} for sku in next(lines)]
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": uuid4().hex}
        return _environ("/v1/orders", headers, {"items": items})

    def plain() -> Environ:
        items = [{"sku": sku, "quantity": 1, "unit_price_minor": 1250} for sku in next(lines)]
        return _environ("/orders", {}, {"client_id": str(customer), "items": items})

    apps: dict[str, tuple[Flask, Callable[[], Environ]]] = {
        "this project": (create_app(), own),
        "plain Flask and SQLAlchemy": (bare.create_app(), plain),
        "the least: bare Flask, psycopg, the same statement and checks": (
            bare.create_least_app(stage.dsn, key, str(customer)),
            own,
        ),
    }
    for name, (app, request) in apps.items():
        for _ in range(WARM_UP):
            _calls(app, request())
        yield name, sum(_calls(app, request()) for _ in range(requests)) / requests


def _environ(path: str, headers: dict[str, str], body: dict[str, Any]) -> Environ:
    return EnvironBuilder(path, method="POST", headers=[*headers.items()], json=body).get_environ()


def _calls(app: Flask, environ: Environ) -> int:
    """How many functions this thread calls during one request."""
    count, statuses = 0, []

    def hook(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    def start_response(status: str, *_: object) -> Any:
        statuses.append(status)

    sys.setprofile(hook)
    try:
        answer = b"".join(app(environ, start_response))
    finally:
        sys.setprofile(None)
    assert statuses[0].startswith("201"), answer
    return count


if __name__ == "__main__":
    main()
