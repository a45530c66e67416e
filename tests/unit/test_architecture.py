"""Arrows go one way: who may import whom, read from the source."""

import ast
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from devtools.processes import ROOT

#: Stands for every module that comes with Python.
STANDARD = "the standard library"
WEB = ("flask", "apiflask", "werkzeug", "granian")
SQL = ("sqlalchemy", "alembic", "psycopg")


@dataclass(frozen=True)
class Rule:
    """What the modules of ``where`` may or must not import. Patterns cover submodules too."""

    where: str
    never: tuple[str, ...] = ()
    #: When given, nothing else is allowed.
    only: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()


RULES = [
    Rule("worker.*", never=("orders", *WEB, *SQL)),
    Rule(
        "orders.*",
        never=("worker",),
        but_not=("orders.bootstrap", "orders.scheduler", "orders.timeouts"),
    ),
    Rule("orders.scheduler", only=(STANDARD, "redis", "structlog", "worker")),
    Rule("orders.domain", only=(STANDARD, "orders.errors", "orders.config")),
    Rule("orders.errors", only=(STANDARD, "orders.domain", "orders.config")),
    Rule("orders.config", only=(STANDARD, "orders.domain", "orders.errors")),
    Rule("orders.service", never=(*WEB, "redis", "worker", "orders.api", "orders.app")),
    Rule("orders.repository", never=(*WEB, "redis", "worker", "orders.service", "orders.api")),
    Rule("orders.api", never=("redis", "orders.repository", "orders.models")),
    Rule("worker.errors", only=(STANDARD,)),
    Rule("worker.backoff", only=(STANDARD,)),
    Rule("worker.flow", only=(STANDARD, "worker.backoff", "worker.errors")),
    Rule("worker.isolation", only=(STANDARD, "worker.errors", "worker.flow")),
    Rule("worker.queue", only=(STANDARD, "redis", "worker.errors", "worker.flow")),
    Rule("worker.connection", only=(STANDARD, "redis")),
    Rule("worker.waker", never=("worker",)),
    Rule("worker.sweep", never=("worker.loop", "worker.cli", "worker.waker")),
    Rule("worker.loop", never=("worker.cli",)),
]


def violations(root: Path, rules: list[Rule] = RULES) -> list[str]:
    """Every import under ``root`` that a rule forbids, as a sentence."""
    modules = dict(_modules(root))
    return [
        f"{module} imports {imported}"
        for rule in rules
        for module, path in modules.items()
        if fnmatch(module, rule.where) and module not in rule.but_not
        for imported in sorted(_imports(path, module, set(modules)))
        if _is(imported, rule.never) or (rule.only and not _is(imported, rule.only))
    ]


def threads(root: Path) -> list[str]:
    """Every class under ``root`` that is a thread, as a sentence.

    `Thread` has private attributes, and each Python may add some. One of them would hide ours of
    the same name, so our classes have threads and are none.
    """
    return [
        f"{module}.{node.name} derives from {ast.unparse(base)}"
        for module, path in _modules(root)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).rpartition(".")[2] in ("Thread", "Timer")
    ]


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    for package in ("orders", "worker"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts), path


def _imports(path: Path, module: str, modules: set[str]) -> set[str]:
    """The full names of all modules imported anywhere in a file, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*package, *([node.module] if node.module else [])])
            members = {f"{source}.{alias.name}" for alias in node.names}
            submodules = members & modules
            found |= submodules
            if len(submodules) < len(members):
                found.add(source)
    return found


def _is(imported: str, patterns: tuple[str, ...]) -> bool:
    return any(
        imported == pattern
        or imported.startswith(f"{pattern}.")
        or (pattern == STANDARD and imported.partition(".")[0] in sys.stdlib_module_names)
        for pattern in patterns
    )


def test_every_import_follows_the_arrows() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("worker/queue.py", "import orders"),
        ("worker/flow.py", "from worker.loop import Worker"),
        ("worker/queue.py", "from worker import loop"),
        ("worker/queue.py", "from . import loop"),
        ("worker/isolation.py", "from .queue import DelayQueue"),
        ("worker/loop.py", "import sqlalchemy.orm"),
        ("worker/sweep.py", "def late() -> None:\n    from flask import Flask"),
        ("orders/domain.py", "import pydantic"),
        ("orders/domain.py", "from orders.models import orders"),
        ("orders/service.py", "from worker import DelayQueue"),
        ("orders/service.py", "import redis"),
        ("orders/service.py", "from flask import g"),
        ("orders/api.py", "import worker.queue"),
    ],
)
def test_an_import_against_the_arrows_is_found(tmp_path: Path, file: str, line: str) -> None:
    for package in ("orders", "worker"):
        shutil.copytree(ROOT / package, tmp_path / package)
    assert violations(tmp_path) == []
    planted = tmp_path / file
    before = planted.read_text() if planted.exists() else ""
    planted.write_text(f"{before}\n{line}\n")
    [violation, *_] = violations(tmp_path)
    assert violation.startswith(f"{file.removesuffix('.py').replace('/', '.')} imports ")


def test_no_class_is_a_thread() -> None:
    assert threads(ROOT) == []


@pytest.mark.parametrize(
    "code",
    [
        "class Late(threading.Thread):\n    pass",
        "class Late(Thread):\n    pass",
        "class Late(Protocol, threading.Timer):\n    pass",
        "def late() -> None:\n    class Late(Thread):\n        pass",
    ],
)
@pytest.mark.parametrize("module", ["orders.scheduler", "worker.sweep"])
def test_a_class_that_is_a_thread_is_found(tmp_path: Path, module: str, code: str) -> None:
    for package in ("orders", "worker"):
        shutil.copytree(ROOT / package, tmp_path / package)
    planted = (tmp_path / module.replace(".", "/")).with_suffix(".py")
    planted.write_text(f"{planted.read_text()}\n{code}\n")
    [violation] = threads(tmp_path)
    assert violation.startswith(f"{module}.Late derives from ")


def test_every_rule_is_about_a_module_that_exists() -> None:
    modules = [module for module, _ in _modules(ROOT)]
    assert [
        rule.where for rule in RULES if not any(fnmatch(module, rule.where) for module in modules)
    ] == []
