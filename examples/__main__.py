"""``python -m examples NAME``: runs one example, on its own Valkey or on the server at REDIS_URL."""

import argparse
import ast
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import structlog

import examples
from devtools.valkey import private_valkey


def names() -> list[str]:
    """The examples that can be run: those with a function ``play``."""
    files = Path(examples.__file__).parent.glob("*.py")
    return sorted(file.stem for file in files if "\ndef play(redis_url" in file.read_text())


def described(name: str) -> str:
    """An example's docstring, read without importing it."""
    source = (Path(examples.__file__).parent / f"{name}.py").read_text()
    return ast.get_docstring(ast.parse(source)) or ""


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<22}{described(name).splitlines()[0]}" for name in names())
    made = argparse.ArgumentParser(
        prog="python -m examples",
        description=(__doc__ or "").replace("``", ""),
        epilog=f"examples:\n{listed}\n\npython -m examples NAME --help describes one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,  # --help describes an example if one is named
    )
    made.add_argument("name", nargs="?", metavar="NAME")
    made.add_argument("-h", "--help", action="store_true", help="show this, or what NAME does")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example that is named. Returns the exit code."""
    parsed = parser().parse_args(argv)
    name = parsed.name
    if name is None:
        parser().print_help(sys.stdout if parsed.help else sys.stderr)
        return 0 if parsed.help else 2
    if name not in names():
        close = get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(names())}"
        print(f"python -m examples: there is no example {name}: {hint}", file=sys.stderr)
        return 2
    if parsed.help:
        print(described(name))
        return 0
    return play(name)


def play(name: str) -> int:
    """Run one example. Returns the exit code."""
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    module = importlib.import_module(f"examples.{name}")
    if url := os.environ.get("REDIS_URL"):
        module.play(url)
        return 0
    with (
        tempfile.TemporaryDirectory() as folder,
        private_valkey(Path(folder), "--appendonly", "yes") as server,
    ):
        module.play(server.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
