"""``make new NAME=seat-hold``: writes a service for another timeout, beside the orders.

It has a table, a migration, a flow, routes, and a test that passes right away. Then adapt it.
"""

import argparse
import keyword
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

from devtools.processes import ROOT

TEMPLATES = Path(__file__).parent / "template"
NAME = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
#: A revision begins with the name, and Alembic's column for it holds 32 characters.
MAX_NAME = 24

NEXT = """\
Wrote {files}.

  make check
  make test TESTS={test}

To try it by hand, paste this. In any other terminal, paste the two exports first:

  export PATH=$PWD/.venv/bin:$PATH
  export DATABASE_URL=sqlite:///{package}.db REDIS_URL=redis://127.0.0.1:6379/0
  python -m devtools.valkey &
  alembic -n {package} upgrade head
  python -m worker run {package}.models:flows &
  flask --app {package}.app run &
  curl --retry 30 --retry-connrefused -X POST 'localhost:5000/{name}/first?seconds=10'
  curl localhost:5000/{name}/first        # pending; again after ten seconds: expired

Its data is in {package}.db. To stop what was started:

  kill %1 %2 %3

docs/writing-a-flow.md explains what a flow can do.
"""


def new(name: str, root: Path = ROOT) -> list[Path]:
    """Write the files of a service, and enter it in pyproject.toml and alembic.ini.

    Raises ValueError if the name is invalid or taken.
    """
    package = _package(name, root)
    words = {
        "name": name,
        "package": package,
        "table": f"{package}s",
        "title": f"{name.replace('-', ' ')}s",
        "Title": f"{name.replace('-', ' ')}s".capitalize(),
    }
    files = {
        root / package / "models.py": "models.py.txt",
        root / package / "app.py": "app.py.txt",
        root / package / "versions" / "0001_first_table.py": "0001_first_table.py.txt",
        root / "tests" / "integration" / f"test_{package}.py": "test.py.txt",
    }
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((TEMPLATES / template).read_text()).substitute(words))
    (root / package / "__init__.py").write_text(f'"""{words["Title"]}."""\n')
    _enter(root, package)
    # How long a line is depends on the name.
    for command in (["format"], ["check", "--fix"]):
        ruff = [sys.executable, "-m", "ruff", "--quiet", *command]
        subprocess.run([*ruff, *files], cwd=root, check=True)
    return [*files]


def _package(name: str, root: Path) -> str:
    """The name of the service's package. Raises ValueError if the name is invalid or taken."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"a name is lowercase words joined by hyphens, such as seat-hold, "
            f"with at most {MAX_NAME} characters, not {name!r}"
        )
    package = name.replace("-", "_")
    if (
        keyword.iskeyword(package)
        or find_spec(package)
        or any(root.glob(package))
        or any(root.glob(f"{package}.*"))
    ):
        raise ValueError(f"Python or this project already has something called {package}")
    return package


def _enter(root: Path, package: str) -> None:
    """Register the package for linting, typing, installing and migrating."""
    pyproject = root / "pyproject.toml"
    text = pyproject.read_text()
    for before, after in (
        (r'^include = \[.*"worker\*"', rf'\g<0>, "{package}*"'),
        (r'^files = \[.*"worker"', rf'\g<0>, "{package}"'),
        (r'^known-first-party = \[.*"worker"', rf'\g<0>, "{package}"'),
        (r"^.*# Alembic loads these by path", rf'"{package}/versions/**" = ["INP001"]\n\g<0>'),
    ):
        text, found = re.subn(before, after, text, flags=re.MULTILINE)
        if not found:
            raise ValueError(f"pyproject.toml has no line matching {before}")
    pyproject.write_text(text)
    with (root / "alembic.ini").open("a") as ini:
        ini.write(
            f"""
# alembic -n {package} upgrade head
[{package}]
script_location = %(here)s/migrations
version_locations = %(here)s/{package}/versions
version_table = {package}_version
metadata = {package}.models:metadata
prepend_sys_path = %(here)s
path_separator = os
"""
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.new", description=__doc__)
    parser.add_argument("name", help="lowercase words joined by hyphens, such as seat-hold")
    name = parser.parse_args().name
    try:
        files = new(name)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    listed = ", ".join(str(path.relative_to(ROOT)) for path in files)
    package = name.replace("-", "_")
    print(NEXT.format(files=listed, test=files[-1].relative_to(ROOT), package=package, name=name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
