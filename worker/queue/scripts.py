"""Reads the Lua scripts: one file each in ``lua/``, and shared parts in ``lua/include/``.

A script's header says what it includes and which keys it takes::

    -- include: clock, wake
    -- KEYS[1] scheduled  zset  task id -> due time, ms

The keys become local names, and the included text is put in front of the script. All of it goes on the line
of the script's first comment, so that the line numbers in Redis's errors match the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

KEY = re.compile(r"^-- KEYS\[\d+\] (\w+)", re.MULTILINE)
INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
COMMENT = re.compile(r"--.*")


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A script, ready to be sent."""

    name: str
    #: Attributes of `Keys`, in the order in which the script takes them.
    keys: tuple[str, ...]
    text: str


@cache
def scripts() -> tuple[ScriptFile, ...]:
    """All scripts, read once."""
    return tuple(_read(files(__package__) / "lua"))


def _read(folder: Traversable) -> Iterator[ScriptFile]:
    for file in folder.iterdir():
        if file.name.endswith(".lua"):
            text = file.read_text("utf-8")
            keys = tuple(KEY.findall(text))
            values = ", ".join(f"KEYS[{n}]" for n in range(1, len(keys) + 1))
            parts = [f"local {', '.join(keys)} = {values}"]
            for names in INCLUDE.findall(text):
                parts += [
                    _on_one_line((folder / "include" / f"{name}.lua").read_text("utf-8"))
                    for name in names.split(", ")
                ]
            yield ScriptFile(file.name.removesuffix(".lua"), keys, " ".join([*parts, text]))


def _on_one_line(text: str) -> str:
    return " ".join(COMMENT.sub("", text).split())
