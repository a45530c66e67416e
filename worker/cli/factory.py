"""Turns ``MODULE:FUNCTION`` into flows, with a clear message for each way in which that may fail."""

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import FlowImportFailed, FlowNotFound, WorkerError, described
from ..flow import Flow

#: The package that this is part of; it may be vendored under another name.
ENGINE = (__package__ or "").removesuffix(".cli")


def made(target: str) -> list[Flow]:
    """The flows that the function at ``MODULE:FUNCTION`` returns. The function defaults to ``flows``.

    Raises FlowNotFound, FlowImportFailed, and whatever WorkerError or ValueError the function raises.
    """
    module, _, name = target.partition(":")
    name = name or "flows"
    if module.endswith(".py") or "/" in module:
        guess = ".".join(Path(module).with_suffix("").parts)
        raise FlowNotFound(f"{target} is a file: name its module, as {guess}:{name}.")
    if not module:
        raise FlowNotFound(f"{target} names no module: write MODULE:{name}.")
    target = f"{module}:{name}"
    # As python -m does, which the installed command does not. What is installed comes first.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    factory = _function(_imported(module, target), name, target)
    try:
        found = list(factory())
    except (WorkerError, ValueError):
        raise  # its message is meant for the user
    except Exception as error:
        raise FlowImportFailed(f"{_place(error)}: {described(error)}") from error
    if not found or not all(isinstance(flow, Flow) for flow in found):
        raise FlowNotFound(f"{target}() returned no flows: it should return a list of Flow.")
    return found


def _function(module: ModuleType, name: str, target: str) -> Callable[[], Iterable[Any]]:
    """The function ``name``. Raises FlowNotFound if there is none that can be called without arguments."""
    factory = getattr(module, name, None)
    if factory is None:
        hint = ""
        if module.__name__ == ENGINE:
            hint = f" {ENGINE} is the engine's own name: give your module another."
        raise FlowNotFound(f"{target}: the module {module.__name__} has no function {name}.{hint}")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise FlowNotFound(
            f"{target} cannot be called without arguments ({error}): "
            "name a function that takes none and reads its settings itself."
        ) from error
    return factory  # type: ignore[no-any-return]  # the caller checks what it returns


def _imported(name: str, target: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise FlowNotFound(f"{target}: {error}.") from error
        # The application's code may raise anything: say where.
        raise FlowImportFailed(f"{_place(error)}: {described(error)}") from error


def _place(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}, line {frame.lineno}"
