"""``python -m examples NAME``: see one example at work, on a Valkey of its own or on REDIS_URL."""

import importlib
import logging
import os
import pkgutil
import sys
import tempfile
from pathlib import Path

import structlog

import examples
from devtools.valkey import private_valkey


def names() -> list[str]:
    """The examples that can be played: those that say how."""
    folder = Path(examples.__file__).parent
    return sorted(
        module.name
        for module in pkgutil.iter_modules([str(folder)])
        if "\ndef play(redis_url" in (folder / f"{module.name}.py").read_text()
    )


def main(name: str) -> int:
    """Play the example of this name; returns the exit code."""
    if name not in names():
        print(f"usage: python -m examples NAME, where NAME is one of {', '.join(names())}")
        return 2
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    play = importlib.import_module(f"examples.{name}").play
    if url := os.environ.get("REDIS_URL"):
        play(url)
        return 0
    with (
        tempfile.TemporaryDirectory() as folder,
        private_valkey(Path(folder), "--appendonly", "yes") as server,
    ):
        play(server.url)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) == 2 else ""))
