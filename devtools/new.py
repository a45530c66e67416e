"""``make new NAME=seat-hold``: writes a service for another timeout, beside the orders.

It has a table, a migration, a flow, routes, and tests that pass right away. Then adapt it.
``make new NAME=seat-hold IN=../seat-hold`` writes a whole repository instead: see `devtools.repository`.
"""

import argparse
import re
import sys
from pathlib import Path

from devtools.processes import ROOT
from devtools.repository import repository
from devtools.template import checked_name, fill, package_of, tidy, words

BESIDE = """\
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

REPOSITORY = """\
Wrote {target}, a repository of its own:

  cd {target}
  git init && git add --all
  make demo
  make test
"""


def new(name: str, root: Path = ROOT) -> list[Path]:
    """Write the files of a service, and enter it in pyproject.toml and alembic.ini.

    Raises ValueError if the name is invalid or taken.
    """
    package = package_of(checked_name(name))
    test = root / "tests" / "integration" / f"test_{package}.py"
    is_registered = f"\n[{package}]\n" in (root / "alembic.ini").read_text()
    if is_registered or test.exists() or any(root.glob(package)) or any(root.glob(f"{package}.*")):
        raise ValueError(f"this project already has something called {package}")
    values = words(name, section=package)
    files = {
        root / package / "models.py": "models.py.txt",
        root / package / "app.py": "app.py.txt",
        root / package / "versions" / "0001_first_table.py": "0001_first_table.py.txt",
        test: "test.py.txt",
    }
    for path, template in files.items():
        fill(template, path, values)
    (root / package / "__init__.py").write_text(f'"""{values["Title"]}."""\n')
    _enter(root, package)
    tidy(root, files)
    return [*files]


def _enter(root: Path, package: str) -> None:
    """Register the package for linting, typing and migrating."""
    pyproject = root / "pyproject.toml"
    text = pyproject.read_text()
    for before, after in (
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
    parser.add_argument("--in", dest="target", type=Path, help="the folder of a new repository")
    options = parser.parse_args()
    try:
        if options.target:
            repository(options.name, options.target)
            print(REPOSITORY.format(target=options.target))
            return 0
        files = new(options.name)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    listed = ", ".join(str(path.relative_to(ROOT)) for path in files)
    test = files[-1].relative_to(ROOT)
    package = package_of(options.name)
    print(BESIDE.format(files=listed, test=test, package=package, name=options.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
