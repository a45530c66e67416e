"""Arrows go one way: who may import whom, read from the source."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
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


# <orders>
#: Where the service meets the engine.
FLOWS = ("orders.timeouts", "orders.deliveries", "orders.outages")
#: What operators see of the engine.
WATCHING = ("orders.queues", "orders.ops.queues", "orders.ops.examination")
# </orders>


def _worker(*names: str) -> tuple[str, ...]:
    return tuple(f"worker.{name}" for name in names)


PACKAGES = [path for path in ("orders", "worker") if (ROOT / path).exists()]

RULES = [
    Rule("worker.*", never=("orders", *WEB)),
    Rule("worker.*", never=SQL, but_not=("worker.records",)),
    # Whoever has no SQLAlchemy does without records, and without nothing else.
    Rule("worker.*", never=("worker.records",), but_not=("worker.records",)),
    # The log is one listener of many: what happens does not depend on it.
    Rule(
        "worker.*",
        never=("worker.watch.logs",),
        but_not=("worker.worker", "worker.runtime.consumer", "worker.cli.*"),
    ),
    # Whoever has no prometheus-client does without metrics, and without nothing else.
    Rule("worker.*", never=("prometheus_client",), but_not=("worker.watch.metrics",)),
    Rule("worker.*", never=("worker.watch.metrics",), but_not=("worker.watch.exposure",)),
    Rule("worker.*", never=("worker.watch.exposure",), but_not=("worker.cli.run",)),
    Rule("worker.watch.metrics", never=_worker("worker", "lane", "station", "sweep", "logs")),
    # The API serves its metrics with it, too.
    Rule("worker.watch.monitoring", only=(STANDARD, "structlog", "worker.errors")),
    # It looks, and nothing that works knows of it.
    Rule(
        "worker.runtime.liveness", only=(STANDARD, *_worker("lane", "outages", "station", "sweep"))
    ),
    Rule(
        "worker.*",
        never=("worker.runtime.liveness",),
        but_not=_worker("__init__", "worker", "metrics", "exposure"),
    ),
    # <orders>
    Rule("orders.*", never=("worker",), but_not=("orders.bootstrap", *FLOWS, *WATCHING)),
    # The page looks at the service, and nothing of the service knows of it.
    Rule("orders.*", never=("orders.ops",), but_not=("orders.app", "orders.ops.*")),
    Rule(
        "orders.ops.routes", never=("redis", "sqlalchemy", "orders.sql.tables", "orders.repository")
    ),
    Rule("orders.ops.lookups", never=(*WEB, "redis", "orders.ops.queues")),
    Rule("orders.ops.repository", never=(*WEB, "redis", "orders.service")),
    Rule("orders.ops.queues", never=(*WEB, *SQL)),
    Rule("orders.ops.shared", only=(STANDARD,)),
    Rule("orders.ops.schemas", never=("flask", "redis", "sqlalchemy", "worker", "orders.service")),
    Rule(
        "orders.ops.sessions",
        only=(STANDARD, "itsdangerous", "orders.clients", "orders.domain", "orders.errors"),
    ),
    # Of the engine it knows the queue, and of the service only how it says that something is wrong.
    Rule("orders.queues", only=(STANDARD, "redis", "worker", "orders.errors")),
    # What an endpoint is sent, and how, is decided without a database, and nothing else calls one.
    Rule("orders.webhooks.urls", only=(STANDARD, "orders.errors")),
    Rule("orders.webhooks.sender", never=(*WEB, *SQL, "redis", "worker", "orders.webhooks")),
    Rule("orders.*", never=("httpcore",), but_not=("orders.webhooks.sender",)),
    Rule(
        "orders.webhooks",
        never=(*WEB, "redis", "worker", "orders.http.routes", "orders.http.schemas"),
    ),
    # </orders>
    Rule("worker.*", never=("worker.cli",), but_not=("worker.__main__", "worker.cli.*")),
    Rule("worker.*", never=("worker.worker",), but_not=_worker("__init__", "cli.run", "exposure")),
    # Whoever has no rich does without tables and bars, and without nothing else.
    Rule("worker.*", never=("rich",), but_not=("worker.cli.terminal",)),
    Rule("worker.*", never=("worker.cli.terminal",), but_not=("worker.cli.output",)),
    # An examination is for whoever asks: a command, or a page.
    Rule("worker.*", never=("worker.doctor",), but_not=("worker.cli.doctor", "worker.doctor.*")),
    Rule(
        "worker.doctor.*",
        only=(
            STANDARD,
            "redis",
            *_worker("doctor", "errors", "findings", "flow", "queue", "scripts"),
        ),
    ),
    Rule("worker.runtime.rebuild", only=(STANDARD, *_worker("flow", "queue"))),
    Rule("worker.findings", only=(STANDARD,)),
    Rule("worker.runtime.tally", only=(STANDARD, "worker.events")),
    # Whoever has no OpenTelemetry does without traces, and without nothing else.
    Rule("worker.*", never=("opentelemetry",), but_not=("worker.watch.tracing",)),
    Rule("worker.*", never=("worker.watch.tracing",), but_not=("worker.cli.run",)),
    Rule("worker.watch.tracing", only=(STANDARD, "opentelemetry", *_worker("errors", "flow"))),
    # <orders>
    Rule(
        "orders.*",
        never=("prometheus_client",),
        but_not=("orders.watch.counters", "orders.metrics"),
    ),
    # Both are imported only when somebody may ask, and not before it is known where they count.
    Rule("orders.*", never=("orders.watch.counters",), but_not=("orders.bootstrap",)),
    Rule("orders.*", never=("orders.metrics",), but_not=("orders.watch.measured",)),
    Rule("orders.watch.counters", only=("prometheus_client",)),
    Rule(
        "orders.*",
        never=("opentelemetry",),
        but_not=("orders.watch.opentelemetry", "orders.http.request_spans"),
    ),
    # Both are imported only when traces were asked for.
    Rule(
        "orders.*",
        never=("orders.watch.opentelemetry",),
        but_not=("orders.bootstrap", "orders.http.request_spans"),
    ),
    Rule("orders.*", never=("orders.http.request_spans",), but_not=("orders.app",)),
    Rule("orders.watch.opentelemetry", never=(*WEB, *SQL, "redis", "worker")),
    Rule("orders.watch.traces", never=(*WEB, *SQL, "redis", "worker")),
    Rule("orders.order.origin", only=(STANDARD,)),
    Rule("orders.domain", only=(STANDARD, "orders.errors", "orders.config", "orders.order.origin")),
    Rule("orders.errors", only=(STANDARD, "orders.domain", "orders.config")),
    Rule("orders.config", only=(STANDARD, "orders.domain", "orders.errors")),
    Rule("orders.service", never=(*WEB, "redis", "worker", "orders.http.routes", "orders.app")),
    Rule("orders.providers", never=(*WEB, "redis", "worker", "orders.http.routes", "orders.app")),
    Rule("orders.webhooks.signatures", only=(STANDARD, "orders.errors")),
    Rule("orders.stock", never=(*WEB, "redis", "worker", "orders.http.routes", "orders.service")),
    Rule(
        "orders.repository", never=(*WEB, "redis", "worker", "orders.service", "orders.http.routes")
    ),
    Rule(
        "orders.stock.repository",
        never=(*WEB, "redis", "worker", "orders.stock", "orders.http.routes"),
    ),
    Rule(
        "orders.order.operations",
        never=(*WEB, "redis", "worker", "orders.repository", "orders.service"),
    ),
    Rule(
        "orders.watch.doctor", never=(*WEB, "redis", "worker", "orders.http.routes", "orders.app")
    ),
    Rule("orders.watch.doctor_repository", never=(*WEB, "redis", "worker", "orders.service")),
    Rule("orders.sql.steps", only=(STANDARD, "sqlalchemy", "orders.sql.expressions")),
    Rule(
        "orders.http.routes.*",
        never=(
            *("redis", "sqlalchemy", "orders.sql.tables", "orders.order.operations"),
            *("orders.repository", "orders.stock.repository"),
        ),
    ),
    Rule(
        "orders.http.schemas.*", never=("flask", "redis", "sqlalchemy", "worker", "orders.service")
    ),
    # </orders>
    Rule("worker.errors", only=(STANDARD,)),
    Rule("worker.backoff", only=(STANDARD,)),
    Rule("worker.queue.scripts", only=(STANDARD,)),
    Rule("worker.queue.advice", only=(STANDARD, "redis")),
    Rule("worker.queue.connection", only=(STANDARD, "redis")),
    Rule("worker.flow", only=(STANDARD, *_worker("backoff", "errors", "findings"))),
    Rule("worker.runtime.isolation", only=(STANDARD, "worker.errors", "worker.flow")),
    Rule("worker.queue", only=(STANDARD, "redis", *_worker("errors", "flow", "scripts"))),
    # A thin shell: what is sent, and what comes back, is the queue's.
    Rule(
        "worker.queue.async_queue", only=(STANDARD, "redis", *_worker("flow", "queue", "scripts"))
    ),
    Rule("worker.*", never=("worker.queue.async_queue",), but_not=("worker.__init__",)),
    # For whoever schedules; whoever works off tasks has no use for it.
    Rule("worker.*", never=("worker.scheduler",), but_not=("worker.__init__",)),
    Rule(
        "worker.scheduler",
        only=(STANDARD, "redis", "structlog", *_worker("errors", "flow", "queue")),
    ),
    Rule("worker.runtime.cron", only=(STANDARD, "cronsim")),
    Rule(
        "worker.runtime.recurring",
        only=(STANDARD, *_worker("backoff", "cron", "events", "flow", "queue")),
    ),
    Rule("worker.events", only=(STANDARD, "structlog", *_worker("errors", "flow"))),
    Rule(
        "worker.watch.logs",
        only=(STANDARD, "structlog", *_worker("advice", "errors", "events", "repeats")),
    ),
    Rule("worker.watch.repeats", only=(STANDARD,)),
    Rule(
        "worker.runtime.waker", only=(STANDARD, "redis", "structlog", *_worker("advice", "errors"))
    ),
    Rule(
        "worker.runtime.outages", only=(STANDARD, *_worker("backoff", "errors", "events", "flow"))
    ),
    Rule("worker.runtime.renewal", never=_worker("station", "outages", "settling")),
    Rule("worker.runtime.settling", never=_worker("station", "outages", "renewal")),
    # What a flow has in this process is put together here, and the threads that use it know only that.
    Rule("worker.runtime.station", never=_worker("lane", "heartbeat", "sweep", "waker")),
    Rule("worker.*", never=_worker("lane"), but_not=_worker("worker", "consumer", "liveness")),
    Rule("worker.runtime.lane", never=_worker("heartbeat", "sweep", "waker")),
    # It puts the same parts together as the worker does.
    Rule("worker.*", never=("worker.runtime.consumer",), but_not=("worker.__init__",)),
    Rule("worker.runtime.consumer", never=_worker("heartbeat", "sweep", "worker")),
    Rule("worker.runtime.sweep", never=_worker("connection", "heartbeat", "waker")),
    Rule("worker.runtime.heartbeat", never=_worker("connection", "settling", "sweep", "waker")),
    Rule(
        "worker.records",
        only=(STANDARD, "sqlalchemy", "structlog", *_worker("backoff", "errors", "flow", "queue")),
    ),
    Rule("worker.__main__", only=(STANDARD, "worker.cli")),
]


def violations(root: Path, rules: list[Rule] = RULES) -> list[str]:
    """Every import under ``root`` that a rule forbids, as a sentence."""
    modules = dict(_modules(root))
    imports = {
        module: sorted(_imports(path, module, set(modules))) for module, path in modules.items()
    }
    return [
        f"{module} imports {imported}"
        for rule in rules
        for module in modules
        if fnmatch(module, rule.where)
        and not any(fnmatch(module, exempt) for exempt in rule.but_not)
        for imported in imports[module]
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
    for package in PACKAGES:
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
        ("worker/queue/delay_queue.py", "import orders"),
        ("worker/flow.py", "from worker.worker import Worker"),
        ("worker/queue/delay_queue.py", "from worker import lane"),
        ("worker/queue/delay_queue.py", "from . import lane"),
        ("worker/runtime/isolation.py", "from .queue import DelayQueue"),
        ("worker/runtime/cron.py", "from .queue import DelayQueue"),
        ("worker/runtime/recurring.py", "from .station import Station"),
        ("worker/runtime/lane.py", "from .logs import log_event"),
        ("worker/queue/async_queue.py", "from .connection import connect_async"),
        ("worker/runtime/consumer.py", "from .async_queue import AsyncDelayQueue"),
        ("worker/runtime/lane.py", "from .sweep import Sweeper"),
        ("worker/events.py", "from .queue import Claim"),
        ("worker/runtime/settling.py", "from .outages import Health"),
        ("worker/runtime/settling.py", "from .scheduler import BatchScheduler"),
        ("worker/queue/scheduler.py", "from .lane import Lane"),
        ("worker/runtime/station.py", "from .lane import Lane"),
        ("worker/runtime/heartbeat.py", "from .lane import Lane"),
        ("worker/runtime/lane.py", "from .consumer import Consumer"),
        ("worker/runtime/consumer.py", "from .sweep import Sweeper"),
        ("worker/runtime/worker.py", "from .cli import main"),
        ("worker/cli/stats.py", "from rich.table import Table"),
        ("worker/cli/stats.py", "from .terminal import Terminal"),
        ("worker/cli/stats.py", "from ..worker import Worker"),
        ("worker/runtime/station.py", "from .doctor import examine"),
        ("worker/doctor/flows.py", "from ..worker import Worker"),
        ("worker/runtime/worker.py", "import sqlalchemy.orm"),
        ("worker/runtime/lane.py", "import prometheus_client"),
        ("worker/runtime/worker.py", "from .metrics import Metrics"),
        ("worker/runtime/lane.py", "from .liveness import Liveness"),
        ("worker/watch/monitoring.py", "from .worker import Worker"),
        ("worker/__init__.py", "from . import records"),
        ("worker/__init__.py", "from .records import Records"),
        ("worker/records.py", "from .sweep import Sweeper"),
        ("worker/records.py", "import psycopg"),
        ("worker/runtime/sweep.py", "def late() -> None:\n    from flask import Flask"),
        # <orders>
        ("orders/order/domain.py", "import pydantic"),
        ("orders/order/domain.py", "from orders.models import orders"),
        ("orders/order/service.py", "from worker import DelayQueue"),
        ("orders/order/service.py", "from worker import BatchScheduler"),
        ("orders/order/service.py", "import redis"),
        ("orders/order/service.py", "from flask import g"),
        ("orders/http/routes/orders.py", "import worker.queue"),
        ("orders/providers/service.py", "from flask import request"),
        ("orders/queues.py", "from orders.ops.shared import Shared"),
        ("orders/http/routes/queue.py", "from worker import DelayQueue"),
        (
            "orders/webhooks/signatures.py",
            "import time\nfrom orders.models import provider_secrets",
        ),
        ("orders/webhooks/service.py", "from worker import Flow"),
        ("orders/webhooks/service.py", "import httpcore"),
        ("orders/webhooks/sender.py", "import sqlalchemy"),
        ("orders/webhooks/urls.py", "import socket, httpcore"),
        ("orders/order/service.py", "from orders.counters import count"),
        ("orders/order/service.py", "import prometheus_client"),
        ("orders/order/service.py", "from orders.tracing import OpenTelemetryTraces"),
        ("orders/timeouts.py", "from opentelemetry import trace"),
        # </orders>
        ("worker/runtime/worker.py", "from opentelemetry import trace"),
        ("worker/runtime/lane.py", "from .tracing import traced"),
    ],
)
def test_an_import_against_the_arrows_is_found(tmp_path: Path, file: str, line: str) -> None:
    for package in PACKAGES:
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
@pytest.mark.parametrize("module", [f"{PACKAGES[0]}.__init__", "worker.scheduler"])
def test_a_class_that_is_a_thread_is_found(tmp_path: Path, module: str, code: str) -> None:
    for package in PACKAGES:
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


# -- the engine as a folder to copy --------------------------------------------------------

#: Imports every module there is, and reads what they read, where nothing is called `worker`.
EVERYTHING = """
import sys
sys.modules["worker"] = sys.modules["prometheus_client"] = None

from importlib import import_module
from pkgutil import iter_modules

package = import_module(sys.argv[1])
for module in iter_modules(package.__path__):
    if module.name not in ("__main__", "records", "metrics"):
        import_module(f"{package.__name__}.{module.name}")

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


@pytest.mark.parametrize("name", ["engine", "shop.vendor.timeouts"])
def test_the_engine_works_as_a_copy_of_its_folder_under_any_name(tmp_path: Path, name: str) -> None:
    copied(tmp_path, name)
    imported = run(tmp_path, "-c", EVERYTHING, name)
    assert (imported.returncode, imported.stderr) == (0, "")
    helped = run(tmp_path, "-m", name, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith(f"usage: python -m {name} ")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("lane.py", "from worker.queue import Claim"),
        ("lane.py", "import worker.queue"),
        ("scripts.py", "files('worker')"),
        ("cli/__init__.py", "from importlib import import_module; import_module('worker.queue')"),
    ],
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


def test_every_file_of_a_package_is_installed_with_it() -> None:
    """Scripts, for instance: an editable install would not miss them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]
    for package in PACKAGES:
        files = {
            path
            for path in (ROOT / package).rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc")
        }
        installed = {
            path for pattern in patterns[package] for path in (ROOT / package).glob(pattern)
        }
        assert files - installed == set()
