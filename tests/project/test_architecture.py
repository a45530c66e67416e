"""Arrows go one way: who may import whom, read from the source."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa

from devtools.processes import ROOT
from orders.feature import features
from orders.features import NAMES
from tests.kit.length import quick_first

#: Stands for every module that comes with Python.
STANDARD = "the standard library"
WEB = ("flask", "werkzeug", "granian")
SQL = ("sqlalchemy", "alembic", "psycopg")

#: What some features share: folders beside them that are none.
SHARED = [
    path.parent.name
    for path in sorted((ROOT / "orders" / "features").glob("*/__init__.py"))
    if not (path.parent / "feature.py").exists()
]
#: The house, from the ground up. What stands in a line may import what stands in the lines below it,
#: and a package its own files.
HOUSE = f"""
orders.__main__
orders.app
{" ".join(f"orders.features.{name}" for name in NAMES)}
{" ".join(f"orders.features.{name}" for name in SHARED)}
orders.commands
orders.timeouts
orders.http
orders.wiring
orders.order
orders.hooks
orders.order.domain
orders.clients orders.stock
orders.db
orders.caches orders.config orders.origin orders.queues
orders.feature
orders.errors orders.log
orders.features
orders
worker.__main__
worker.cli
worker.console
worker.doctor worker.records worker.watch
worker
worker.runtime
worker.queue
worker.events
worker.flow
worker.log
worker.backoff worker.errors worker.findings worker.pauses
"""


@dataclass(frozen=True)
class Rule:
    """What the modules of ``where`` may or must not import. Patterns cover submodules too."""

    where: str
    never: tuple[str, ...] = ()
    #: When given, nothing else is allowed.
    only: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()


PACKAGES = ("orders", "worker")
CONTEXTS = ("order", "stock", "clients", *(f"features.{name}" for name in NAMES))
#: Where the service meets the engine.
ENGINE_ROOMS = (
    *(
        "orders.*.commands",
        "orders.features.*.checks",
        "orders.features.*.flow",
        "orders.features.*.feature",
        "orders.commands",
    ),
    *(
        "orders.features.doctor.*",
        "orders.features.ops.*",
        "orders.features.why.*",
        "orders.log",
    ),
    *("orders.features.operators.*", "orders.timeouts", "orders.wiring"),
)

Graph = Mapping[str, Sequence[str]]

EXPOSING = ("worker.watch.metrics", "worker.watch.exposure")

RULES = [
    Rule("worker.*", never=("orders", *WEB)),
    # The two logs, which show no local variables, and what is bound to them.
    Rule(
        "*",
        never=("structlog",),
        but_not=("worker.log", "worker.watch.logs", "orders.log", "orders.http.headers"),
    ),
    # Whoever has no such library does without that module, and without nothing else.
    Rule("worker.*", never=SQL, but_not=("worker.records.*",)),
    Rule("worker.*", never=("click", "rich"), but_not=("worker.console", "worker.cli.*")),
    Rule("worker.*", never=("prometheus_client",), but_not=EXPOSING),
    Rule("worker.*", never=("opentelemetry",), but_not=("worker.watch.tracing",)),
    Rule("worker.*", never=("worker.records",), but_not=("worker.records.*",)),
    Rule("worker.*", never=("worker.watch.metrics",), but_not=("worker.watch.exposure",)),
    # The API serves its metrics with it, too.
    Rule("worker.watch.monitoring", only=(STANDARD, "worker.errors", "worker.log")),
    # Within the runtime: the worker and the consumer put the parts together, and no part knows them.
    Rule(
        "worker.runtime.*",
        never=("worker.runtime.worker", "worker.runtime.consumer"),
    ),
    # Which errors are transient stands in one place, and what people may write as a reason.
    Rule(
        "orders.*",
        never=("worker",),
        but_not=(*ENGINE_ROOMS, "orders.errors", "orders.db.errors", "orders.http.schemas.types"),
    ),
    Rule(
        "orders.db.errors",
        only=(STANDARD, "sqlalchemy", "orders.errors", "worker.records.outages"),
    ),
    Rule(
        "orders.*",
        never=("redis",),
        but_not=(
            "orders.wiring",
            "orders.features.operators.*",
            "orders.features.*.feature",
            "orders.features.ops.queues",
        ),
    ),
    Rule(
        "orders.*",
        never=WEB,
        but_not=(
            *(
                "orders.http.*",
                "orders.app",
                "orders.commands",
                "orders.*.commands",
                "orders.__main__",
            ),
            *("orders.feature", "orders.features.ops.*", "orders.features.metrics.*"),
            "orders.features.operators.*",
            "orders.features.openapi.*",
            *(
                f"orders.features.*.{role}"
                for role in ("feature", "reports", "routes", "request_spans")
            ),
            *("orders.features.*.schemas", "orders.features.providers.attempts.gateway"),
        ),
    ),
    Rule("orders.http.*", never=SQL),
    Rule("orders.*", never=("httpcore",), but_not=("orders.features.signing.sender",)),
    Rule("orders.*", never=("prometheus_client",), but_not=("orders.features.metrics.*",)),
    Rule("orders.*", never=("opentelemetry",), but_not=("orders.features.traces.*",)),
    # Rules and types are pure: no clock, no database, no network.
    Rule(
        "orders.*.domain",
        only=(
            *(STANDARD, "orders.errors"),
            *(f"orders.{each}.{kind}" for each in CONTEXTS for kind in ("domain", "errors")),
        ),
    ),
    # The core names no feature; `orders.feature` finds them.
    Rule(
        "orders.*",
        never=tuple(f"orders.features.{name}" for name in (*NAMES, *SHARED)),
        but_not=("orders.features.*",),
    ),
    # Nor does a feature name those that read what each of them brings.
    *(
        Rule("orders.*", never=(f"orders.features.{each}",), but_not=(f"orders.features.{each}.*",))
        for each in ("doctor", "metrics", "openapi", "ops", "traces", "why")
    ),
    # What an endpoint is sent, and how, is decided without a database.
    *(
        Rule(f"orders.features.{name}.*", never=SQL, but_not=("orders.features.*.tables",))
        for name in SHARED
    ),
    # A context's statements are its own. The operators' page and the doctor look at everything.
    *(
        Rule(
            "orders.*",
            never=(f"orders.{each}.rows",),
            but_not=(f"orders.{each}.*", "orders.features.*"),
        )
        for each in CONTEXTS
    ),
]


def upwards(graph: Graph) -> list[str]:
    """Every import that does not go down in the `HOUSE`, as a sentence."""
    lines = [line.split() for line in HOUSE.strip().splitlines()]
    floors = {room: -number for number, line in enumerate(lines) for room in line}

    def room(module: str) -> str:
        """The longest name of a room that the module is in."""
        names = module.removesuffix(".__init__").split(".")
        return next(
            name for n in range(len(names), 0, -1) if (name := ".".join(names[:n])) in floors
        )

    return [
        f"{module} imports {imported}"
        for module, found in graph.items()
        for imported in found
        if imported.partition(".")[0] == module.partition(".")[0]
        if room(module) != room(imported) and floors[room(module)] <= floors[room(imported)]
    ]


def circles(graph: Graph) -> list[str]:
    """Every module that imports itself by way of others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for each in graph.get(todo.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    todo.append(each)
        return seen

    return [module for module in graph if module in reached(module)]


@cache
def sources() -> dict[str, str]:
    """Every module's source."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def imports() -> Graph:
    """What each module imports."""
    return {module: _imports(module, source) for module, source in sources().items()}


def with_line(file: str, line: str) -> Graph:
    """What each module imports, once this line is planted in a file."""
    module = file.removesuffix(".py").replace("/", ".")
    return {**imports(), module: _imports(module, f"{sources()[module]}\n{line}\n")}


def violations(graph: Graph) -> list[str]:
    """Every import that a rule forbids, as a sentence."""
    return [
        f"{module} imports {imported}"
        for rule in RULES
        for module in graph
        if fnmatch(module, rule.where)
        and not any(fnmatch(module, exempt) for exempt in rule.but_not)
        for imported in graph[module]
        if _is(imported, rule.never) or (rule.only and not _is(imported, rule.only))
    ]


def _imports(module: str, source: str) -> list[str]:
    """The full names of all modules imported anywhere in a module, inside functions too."""
    found: set[str] = set()
    tree = ast.parse(source)
    for typed in [each for each in tree.body if isinstance(each, ast.If)]:  # if TYPE_CHECKING
        tree.body.remove(typed)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            parent = ".".join([*package, *([node.module] if node.module else [])])
            members = {f"{parent}.{alias.name}" for alias in node.names}
            submodules = members & sources().keys()
            found |= submodules
            if len(submodules) < len(members):
                found.add(parent)
    return sorted(found)


def _is(imported: str, patterns: tuple[str, ...]) -> bool:
    return any(
        imported == pattern
        or imported.startswith(f"{pattern}.")
        or (pattern == STANDARD and imported.partition(".")[0] in sys.stdlib_module_names)
        for pattern in patterns
    )


def test_every_import_follows_the_arrows() -> None:
    assert violations(imports()) == upwards(imports()) == circles(imports()) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("worker/queue/delay_queue.py", "import orders"),
        ("worker/queue/delay_queue.py", "from ..runtime import lane"),
        ("worker/flow.py", "from worker.runtime.worker import Worker"),
        ("worker/runtime/worker.py", "import sqlalchemy.orm"),
        ("worker/runtime/sweep.py", "def late() -> None:\n    from flask import Flask"),
        ("worker/doctor/flows.py", "from ..cli import main"),
        ("worker/__init__.py", "from .records import Records"),
        ("orders/order/domain.py", "import pydantic"),
        ("orders/order/domain.py", "from orders.db.tables import orders"),
        ("orders/order/service.py", "from worker import DelayQueue"),
        # <webhooks>
        ("orders/order/service.py", "from orders.features.webhooks.domain import Message"),
        # </webhooks>
        ("orders/stock/service.py", "from orders.order.rows import ORDER"),
        ("orders/db/tables.py", "from orders.order.domain import Order"),
        ("orders/http/routes/orders.py", "import worker.queue"),
        ("orders/http/routes/orders.py", "from orders.app import create_app"),
        ("orders/timeouts.py", "from opentelemetry import trace"),
    ],
)
def test_an_import_against_the_arrows_is_found(file: str, line: str) -> None:
    graph = with_line(file, line)
    [violation, *_] = violations(graph) + upwards(graph)
    assert violation.startswith(f"{file.removesuffix('.py').replace('/', '.')} imports ")


def test_a_circle_between_files_of_one_room_is_found() -> None:
    graph = with_line("worker/runtime/isolation.py", "from .lane import Lane")
    assert "worker.runtime.isolation" in circles(graph)


def test_every_rule_is_about_a_module_that_exists() -> None:
    modules = [*sources()]
    rooms = [*HOUSE.split(), *(rule.where for rule in RULES)]
    assert [
        room
        for room in rooms
        if not any(fnmatch(each, room) or each.startswith(f"{room}.") for each in modules)
    ] == []


# -- tests ------------------------------------------------------------------------------------


def test_no_test_imports_another_and_what_they_share_imports_neither_them_nor_a_feature() -> None:
    paths = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    graph = {module: _imports(module, path.read_text()) for module, path in modules.items()}
    wrong = [
        f"{module} imports {imported}"
        for module, all_of_it in graph.items()
        for imported in all_of_it
        if ".test_" in imported
        or (
            module.startswith("tests.kit.")
            and re.match(r"orders\.features\.|tests\.(?!kit)", imported)
        )
    ]
    assert wrong == []


# -- the engine as a folder to copy --------------------------------------------------------

#: Imports every module there is, and reads what they read, where nothing is called `worker`.
EVERYTHING = """
import sys
sys.modules["worker"] = sys.modules["prometheus_client"] = None

from importlib import import_module
from pkgutil import walk_packages

package = import_module(sys.argv[1])
for module in walk_packages(package.__path__, f"{package.__name__}."):
    if not module.name.endswith(("__main__", ".records", ".metrics", ".tracing")):
        import_module(module.name)

import redis
queue = package.DelayQueue(redis.Redis(), "a")
assert {"claim", "restore"} <= {*queue._scripts}
assert not [name for name in sys.modules if name.startswith("worker.")]
"""


def copied(folder: Path, name: str) -> None:
    """The engine under another name."""
    parts = name.split(".")
    shutil.copytree(
        ROOT / "worker",
        folder.joinpath(*parts),
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for depth in range(1, len(parts)):
        folder.joinpath(*parts[:depth], "__init__.py").touch()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python that finds the copy."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("name", quick_first(["shop.vendor.timeouts", "engine"]))
def test_the_engine_works_as_a_copy_of_its_folder_under_any_name(tmp_path: Path, name: str) -> None:
    copied(tmp_path, name)
    imported = run(tmp_path, "-c", EVERYTHING, name)
    assert (imported.returncode, imported.stderr) == (0, "")
    helped = run(tmp_path, "-m", name, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith(f"Usage: python -m {name} ")


@pytest.mark.parametrize(
    ("file", "line"),
    quick_first(
        [
            ("queue/scripts.py", "files('worker')"),
            ("runtime/lane.py", "from worker.queue.delay_queue import Claim"),
            ("runtime/lane.py", "import worker.queue"),
            (
                "cli/__init__.py",
                "from importlib import import_module; import_module('worker.queue')",
            ),
        ]
    ),
)
def test_a_copy_that_needs_the_original_is_found(tmp_path: Path, file: str, line: str) -> None:
    copied(tmp_path, "engine")
    planted = tmp_path / "engine" / file
    planted.write_text(f"{planted.read_text()}\n{line}\n")
    assert run(tmp_path, "-c", EVERYTHING, "engine").returncode != 0


def test_the_engine_imports_itself_by_relative_names_only() -> None:
    for path in sorted((ROOT / "worker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                named = [str(node.module)]
            assert not [each for each in named if each.partition(".")[0] == "worker"], path


def test_no_sql_outside_a_feature_names_its_tables() -> None:
    for feature in features():
        tables = "|".join(
            each.name
            for each in getattr(feature.tables, "__dict__", {}).values()
            if isinstance(each, sa.Table)
        )
        folder = ROOT / "orders/features" / feature.name
        for path in (ROOT / "orders").rglob("*.sql"):
            named = re.search(rf"\b({tables or '(?!)'})\b", path.read_text())
            assert folder in path.parents or not named, (path, named)


def test_every_file_of_a_package_is_installed_with_it() -> None:
    """Scripts, for instance: an editable install would not miss them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]
    for package in PACKAGES:
        files = {
            path
            for path in (ROOT / package).rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc", ".md", ".png")
        }
        installed = {
            path for pattern in patterns[package] for path in (ROOT / package).glob(pattern)
        }
        assert files - installed == set()
