"""What a feature may bring. Each is a folder of `orders.features`, with a `FEATURE` in its ``feature.py``.

Whatever makes the service of its parts (routes, OpenAPI, settings, doctor, metrics, flows, commands, erasing) goes
through `features`. To take a feature away, delete its folder, its name in `orders.features`, its migration and its tests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from flask import Flask

from orders.errors import OrderError
from orders.features import NAMES

if TYPE_CHECKING:
    import sqlalchemy as sa

    from orders.features.parts import Cause, Counted, Figure, OrderData, Panel, Sent, Step
    from orders.http.routing import Routes
    from orders.wiring import Services
    from worker import Finding, Flow


def nothing(*_: object) -> Iterable[Any]:
    """What a feature brings that brings none."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Feature:
    """Each field but the name is empty unless the feature says otherwise."""

    name: str
    #: The module of its tables and triggers, which belong to the metadata once it is imported.
    tables: ModuleType | None = None
    #: Its settings: frozen dataclasses with a default for each environment variable. See `orders.config`.
    settings: Sequence[type] = ()
    #: The names of its queues.
    queues: Sequence[str] = ()
    #: Makes its services, found by their types in `Services`, and attaches what they do to the core's `Hooks`.
    wire: Callable[["Services"], Iterable[object]] = nothing
    #: What a worker runs for it, asked for once. Attaches what only a worker does.
    flows: Callable[["Services"], Iterable["Flow"]] = nothing
    #: What a process does beside that serves the API, before it answers the first request.
    serve: Callable[[Flask, "Services"], object] = lambda *_: None
    #: Its routes, each group with its part of the OpenAPI document.
    routes: Sequence["Routes"] = ()
    #: Errors that its hooks add to routes of the core, by their views' names.
    refusals: Mapping[str, Sequence[type[OrderError]]] = field(default_factory=dict)
    #: Changes the application beyond routes.
    install: Callable[[Flask], object] = nothing
    #: The messages that it sends to clients, for the API's description.
    sent: Sequence["Sent"] = ()
    #: Its commands of ``python -m orders``.
    commands: Sequence[click.Command] = ()
    #: What it stores about orders. Statements are read from files, but not while modules are imported.
    order_data: Callable[[], "OrderData | None"] = lambda: None
    #: What the doctor examines, each with its name.
    checks: Sequence[tuple[Callable[["sa.Connection"], "Finding"], str]] = ()
    #: What a worker's doctor examines beside its queues.
    examine: Callable[["Services"], Iterable["Finding"]] = nothing
    #: What keeps or stops an unpaid order, given its row: id, client, expires_at, ms until then, kept_until.
    causes: Callable[["sa.Connection", "sa.Row[Any]"], Iterable["Cause"]] = nothing
    #: The ids of the messages about listed events of the feed, by their sequence.
    messages: Callable[["sa.Connection", Sequence[Any]], Mapping[int, Sequence[str]]] = lambda *_: {}
    #: What each scrape of the metrics reads.
    figures: Sequence[Callable[["sa.Connection"], Iterable["Figure"]]] = ()
    #: What the metrics count of what `Hooks.observe` is told.
    counters: Sequence["Counted"] = ()
    #: Its part of the operators' page, read at most once a second while the database answers. Its folder has the template
    #: ``templates/panel.html``, to which it is ``panel``, and ``static/NAME.css``. It must not raise.
    panel: Callable[["Services"], "Panel"] | None = None
    #: What that page adds to the timeline of an order, given its id.
    steps: Callable[["sa.Connection", str], Iterable["Step"]] = nothing


@cache
def features() -> tuple[Feature, ...]:
    """All that there are, in the order of `NAMES`."""
    packages = (name if "." in name else f"orders.features.{name}" for name in NAMES)
    return tuple(import_module(f"{package}.feature").FEATURE for package in packages)
