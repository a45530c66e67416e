"""The files of a new service, and how they are filled in."""

import keyword
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template

from devtools.processes import ROOT

FOLDER = Path(__file__).parent
NAME = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
#: A revision begins with the name, and Alembic's column for it holds 32 characters.
MAX_NAME = 24
WRITTEN = """\
Wrote {target}, a repository of its own:

  cd {target}
  git init && git add --all
  make demo
  make test
"""


def checked_name(name: str) -> str:
    """The name of a service. Raises ValueError if it is invalid, or that of a module that is installed."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"a name is lowercase words joined by hyphens, such as seat-hold, "
            f"with at most {MAX_NAME} characters, not {name!r}"
        )
    package = package_of(name)
    elsewhere = [place for place in sys.path if Path(place).resolve() != ROOT]
    if (
        keyword.iskeyword(package)
        or package in sys.stdlib_module_names
        or PathFinder.find_spec(package, elsewhere)
    ):
        raise ValueError(f"Python already has something called {package}")
    return name


def package_of(name: str) -> str:
    return name.replace("-", "_")


def check_empty(target: Path) -> None:
    """Raises ValueError for a folder that has something in it, and for what is no folder."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} already exists, and is not an empty folder")


def report(write: Callable[[], object], target: Path, more: str = "") -> int:
    """Write a repository, and print what to do next, or why it cannot be written. Returns the exit status."""
    try:
        write()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(WRITTEN.format(target=target) + more)
    return 0


def words(name: str) -> dict[str, str]:
    """What the placeholders stand for."""
    title = f"{name.replace('-', ' ')}s"
    return {
        "name": name,
        "package": package_of(name),
        "table": f"{package_of(name)}s",
        "title": title,
        "Title": title.capitalize(),
    }


def fill(template: str, path: Path, values: Mapping[str, str]) -> None:
    """Write a template's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Template((FOLDER / template).read_text()).substitute(values))


def tidy(root: Path) -> None:
    """Format what was written: how long a line is depends on the name."""
    files = [*root.rglob("*.py")]
    for command in (["format"], ["check", "--fix"]):
        ruff = [sys.executable, "-m", "ruff", "--quiet", *command, "--no-cache"]
        subprocess.run([*ruff, *files], cwd=root, check=True)
