"""docs/reference.md names what is public, and nothing else."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from textwrap import dedent
from typing import Any

import pytest

import worker
import worker.records
import worker.watch.metrics
import worker.watch.tracing
from devtools.processes import ROOT
from worker import events

PAGE = (ROOT / "docs" / "reference.md").read_text()
#: A name in code, and its parameters if it has any.
CODE = re.compile(r"`(\w+)(?:\((.*?)\))?`")
#: Only tests pass these.
HIDDEN = ("self", "now_ms", "environment", "clock")
PUBLIC = {name: getattr(worker, name) for name in worker.__all__}


def table(heading: str) -> Iterator[tuple[str, str]]:
    """The rows of the tables whose heading says this: the first cell, and the rest."""
    for found in re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        for row in found.splitlines():
            first, rest = row.removeprefix("| ").split(" | ", 1)
            yield first, rest


def documented(heading: str) -> dict[str, str | None]:
    """Each name in the first column, and its parameters as written."""
    return {
        name: parameters or None
        for cell, _ in table(heading)
        for name, parameters in CODE.findall(cell)
    }


def names_in(parameters: str) -> list[str]:
    parts = [part for part in parameters.split(", ") if part not in ("*", "…")]
    return [re.split("[ =]", part)[0].strip("*") for part in parts]


def parameters_of(function: Any) -> list[str]:
    kinds = inspect.signature(function).parameters.values()
    return [kind.name for kind in kinds if kind.name not in HIDDEN]


def test_a_program_has_one_name() -> None:
    """But where the page on installing says what is installed."""
    folders = [ROOT, ROOT / "docs", ROOT / "orders" / "ops" / "static"]
    pages = {
        path
        for folder in folders
        for kind in ("md", "html", "json")
        for path in folder.glob(f"*.{kind}")
    }
    other = r"order-timeout-orders|\border-timeout (?:run|stats)|flask --app orders|alembic upgrade head"
    found = {path.name for path in pages if re.search(other, path.read_text())}
    assert found == {"install.md"}


def test_every_public_name_is_in_the_reference() -> None:
    assert {*documented("name")} == {*PUBLIC}


def test_every_queue_method_is_in_the_reference() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(worker.DelayQueue, inspect.isfunction)
        if not name.startswith("_")
    }
    assert {*documented("method of a `DelayQueue`")} == methods


def test_records_are_documented_with_their_parameters() -> None:
    for name, parameters in documented("name in `worker.records`").items():
        assert names_in(parameters or "") == parameters_of(getattr(worker.records, name)), name
    methods = {
        name: parameters_of(method)
        for name, method in vars(worker.records.Records).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    written = documented("method of `Records`")
    assert {name: names_in(parameters or "") for name, parameters in written.items()} == methods


def test_what_traces_are_made_with_is_documented() -> None:
    for name, parameters in documented("name in `worker.watch.tracing`").items():
        made = getattr(worker.watch.tracing, name)
        assert parameters is None or names_in(parameters) == parameters_of(made)
    public = {
        name for name, each in vars(worker.watch.tracing).items() if is_of_tracing(name, each)
    }
    assert {*documented("name in `worker.watch.tracing`")} == public


def is_of_tracing(name: str, each: Any) -> bool:
    return not name.startswith("_") and getattr(each, "__module__", "") == "worker.watch.tracing"


def test_metrics_are_documented_with_their_parameters() -> None:
    [(name, parameters)] = documented("name in `worker.watch.metrics`").items()
    assert names_in(parameters or "") == parameters_of(getattr(worker.watch.metrics, name))


def test_every_setting_of_a_flow_is_documented_with_its_default() -> None:
    defaults = {
        field.name: field.default if field.default is not MISSING else field.default_factory
        for field in fields(worker.Flow)
        if field.name not in ("name", "handler")
    }
    written = {cell.strip("`"): rest.split(" | ")[0] for cell, rest in table("setting of a `Flow`")}
    assert {*written} == {*defaults}
    for setting, default in defaults.items():
        if isinstance(default, bool):
            assert written[setting] == ("yes" if default else "no"), setting
        elif isinstance(default, float | int):
            assert float(written[setting].replace(",", "")) == default, setting


def test_every_event_is_documented() -> None:
    kinds = {kind.__name__ for kind in events.Event.__subclasses__()}
    assert {*documented("event")} == kinds


def test_every_public_class_and_function_has_a_docstring() -> None:
    for name, thing in PUBLIC.items():
        if inspect.isclass(thing) or inspect.isfunction(thing):
            doc = thing.__doc__ or ""
            assert doc, name
            assert not doc.startswith(f"{name}("), name  # what dataclasses make up


def examples() -> Iterator[tuple[str, ast.AST]]:
    """The example in each docstring that has one, by the public name."""
    for name, thing in PUBLIC.items():
        text = inspect.getdoc(thing) if callable(thing) else None
        for block in re.findall(r"::\n\n((?: {4}.*\n?|\n)+)", text or ""):
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            yield name, compile(dedent(block), name, "exec", flags)


def test_what_one_begins_with_has_an_example_in_its_docstring() -> None:
    named = {name for name, _ in examples()}
    begin = "BatchScheduler Consumer DelayQueue Flow Recurring Retry Worker one_at_a_time"
    assert {*begin.split()} <= named


def test_docstring_examples_use_names_and_parameters_that_exist() -> None:
    calls = [
        (node.func.id, [keyword.arg for keyword in node.keywords])
        for _, example in examples()
        for node in ast.walk(example)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    known = {name: keywords for name, keywords in calls if name in PUBLIC}
    assert len(known) > 5
    for name, keywords in known.items():
        settings = {field.name for field in fields(worker.Flow)}
        assert {*keywords} <= {*parameters_of(PUBLIC[name])} | settings, name


def test_a_name_that_is_missing_or_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PAGE", PAGE.replace("`connect`", "`conect`"))
    with pytest.raises(AssertionError):
        test_every_public_name_is_in_the_reference()
    monkeypatch.setattr(f"{__name__}.PAGE", PAGE.replace("`restore`, ", ""))
    with pytest.raises(AssertionError):
        test_every_queue_method_is_in_the_reference()
