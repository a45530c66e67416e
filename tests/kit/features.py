"""What the tests of features bring to those of the whole."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import sqlalchemy as sa

from orders.features import NAMES
from worker import Finding


def brought(module: str) -> list[ModuleType]:
    """The modules of that name in the folders of the features' tests."""
    names = [f"tests.{name.rpartition('.')[2]}" for name in NAMES]
    places = [f"{name}.{module}" for name in names if find_spec(name)]
    return [import_module(place) for place in places if find_spec(place)]


def findings(engine: sa.Engine, **more: Any) -> dict[str, Finding]:
    """What the doctor finds in a database, by what it examined; nothing without a doctor."""
    found = [each for module in brought("examined") for each in module.findings(engine, **more)]
    return {each.check: each for each in found}
