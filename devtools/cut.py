# <cut/>
"""Features come off: writes the service with some of them only, as a repository of its own.

``make new NAME=parking IN=../parking KEEP="webhooks ops"``; with ``KEEP=none`` the core alone.

What goes with a feature: its folder, its name in `orders.features`, its migration, ``tests/NAME``, every file of tests
that imports what is gone, and what is marked as the feature's::

    <!-- webhooks -->a part of a page<!-- /webhooks -->, or a line of it <!-- webhooks/ -->
    # <webhooks>, a part of any other file, # </webhooks>, or a line of it  # <webhooks/>

A mark in the first line of a file is about the whole file, in an ``__init__.py`` about the folder. A panel of a
dashboard has a field ``feature``. What is marked as ``webhooks or providers`` goes with the last of them, as
``features`` when none is left, and as ``cut`` always: this module. No mark is left.
"""

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

from devtools.new import subset
from devtools.processes import ROOT, Code, run
from devtools.template import check_empty, checked_name, report, tidy
from orders.features import NAMES


def repository(target: Path, keep: Collection[str], name: str = "") -> None:
    """Write the service with these features to a folder that is empty or does not exist.

    Raises ValueError for another folder, a name that is invalid, an unknown feature, or where what stays names what is
    gone.
    """
    if unknown := {*keep} - {*NAMES}:
        raise ValueError(f"no feature is called {min(unknown)}, only {', '.join(NAMES) or 'none'}")
    check_empty(target)
    if name:
        checked_name(name)
    _copy(target)
    gone = [each for each in NAMES if each not in keep]
    for each in gone:
        _take(target, each)
    if gone:
        names = target / "orders" / "features" / "__init__.py"
        head = names.read_text().partition(" = (")[0]
        names.write_text(f"{head} = {tuple(each for each in NAMES if each in keep)}\n")
    for path in texts(target):
        if path.exists():
            _take_marked(path, gone)
    _take_tests(target)
    _refuse_names(target, gone)
    if name:
        _rename(target, name)
    _write_locks(target)
    tidy(target)
    if (target / "devtools" / "openapi.py").exists():
        run(["devtools.openapi"], {"PYTHONDONTWRITEBYTECODE": "1"}, Code(target))
    else:
        (target / "docs" / "openapi.json").unlink()


def _copy(target: Path) -> None:
    """What git would add, whether or not this is a clone."""
    listed = ["ls-files", "-zo", "--exclude-standard"]
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", f"--git-dir={folder}", "--work-tree=."]
        subprocess.run([*git, "init", "--quiet"], cwd=ROOT, check=True)
        done = subprocess.run([*git, *listed], cwd=ROOT, check=True, capture_output=True, text=True)
    for file in filter(None, done.stdout.split("\0")):
        made = target / file
        made.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, made, follow_symlinks=False)


def _take(root: Path, name: str) -> None:
    """A feature's folder, its tests, and its migration: the next one follows the one before."""
    short = name.rpartition(".")[2]
    module = name if "." in name else f"orders.features.{name}"
    shutil.rmtree(root.joinpath(*module.split(".")))
    shutil.rmtree(root / "tests" / short, ignore_errors=True)
    for file in (root / "migrations" / "versions").glob(f"*_{short}.py"):
        [below] = re.findall("^down_revision = (.+)", file.read_text(), re.MULTILINE)
        file.unlink()
        for other in [*file.parent.glob("*.py"), *(root / "examples").rglob("migration.py")]:
            text = other.read_text()
            above = f'down_revision = "{file.stem}"'
            other.write_text(text.replace(above, f"down_revision = {below}"))


def texts(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix != ".png":
            yield path


def _take_marked(path: Path, gone: Collection[str]) -> None:
    """Parts, lines and panels that are about these features only, or the file; and all marks."""
    text = before = path.read_text()
    if path.parent.name == "dashboards" and path.suffix == ".json":
        board = json.loads(text)
        panels = [(each.pop("feature", "").split(), each) for each in board["panels"]]
        board["panels"] = [panel for names, panel in panels if not {*names} & {*gone}]
        text = json.dumps(board, indent=1, ensure_ascii=False) + "\n"
    names = "|".join(map(re.escape, ("cut", "features", *NAMES)))
    for mark in {*re.findall(rf"<(?:!-- )?((?:{names})(?: or (?:{names}))*)/?(?: --)?>", text)}:
        begin, end, line = (
            rf"(?:<!-- {each} -->|(?:#|--|//) <{each}>)" for each in (mark, f"/{mark}", f"{mark}/")
        )
        if {*(NAMES if mark == "features" else mark.split(" or "))} <= {*gone, "cut"}:
            if re.match(f".*{line}", text):
                shutil.rmtree(path.parent) if path.name == "__init__.py" else path.unlink()
                return
            text = re.sub(f"^.*{line}.*\n", "", text, flags=re.MULTILINE)
            text = re.sub(rf"^ *{begin}\n(?s:.*?)^ *{end}\n\n?", "", text, flags=re.MULTILINE)
            text = re.sub(f"{begin}(?s:.*?){end}", "", text)
        blank = r"\n?" if path.suffix == ".md" else ""
        text = re.sub(rf"^ *(?:{begin}|{end}|{line})\n{blank}", "", text, flags=re.MULTILINE)
        text = re.sub(f" *{line}|{begin}|{end}", "", text)
    if text != before:
        path.write_text(text)


def _take_tests(root: Path) -> None:
    """Each file of tests that imports what is gone, until there is none."""
    while lost := [path for path in (root / "tests").rglob("*.py") if _imports_gone(path, root)]:
        for path in lost:
            path.unlink()


def _imports_gone(path: Path, root: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            modules = [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]
        else:
            modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if any(_there(ROOT, each) and not _there(root, each) for each in modules):
            return True
    return False


def _there(root: Path, module: str) -> bool:
    path = root.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _refuse_names(root: Path, gone: Collection[str]) -> None:
    """Raise ValueError if a file still names the folder of a feature that is gone."""
    if not gone:
        return
    named = re.compile(rf"\bfeatures[./]({'|'.join(map(re.escape, gone))})\b.*")
    for path in texts(root):
        if path.is_relative_to(root / "tests"):
            continue  # what imports it is gone
        if found := named.search(path.read_text()):
            place = f"{path.relative_to(root)}:{found.string.count(chr(10), 0, found.start()) + 1}"
            raise ValueError(f"{found[1]} cannot be taken away: {place} names {found[0]}")


def _rename(root: Path, name: str) -> None:
    """The service's title, and what is called after it: distribution, image, units, queue. Its packages stay."""
    title = name.replace("-", " ").capitalize()
    for path in texts(root):
        text = path.read_text()
        path.write_text(text.replace("order-timeout", name).replace("Order timeout", title))
        if "order-timeout" in path.name:
            path.rename(path.with_name(path.name.replace("order-timeout", name)))


def _write_locks(root: Path) -> None:
    """What runs the service, without packages that only a feature needed. Tests and tools may need them still."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["records"], *extras["orders"], *extras["metrics"]]
    for kind, more in (("service", []), ("demo", extras["demo"])):
        lock = root / "requirements" / f"{kind}.lock"
        lock.write_text(subset(lock.read_text(), [*wanted, *more]))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.cut", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "name", help="lowercase words joined by hyphens, such as parking; empty: as it is"
    )
    parser.add_argument("target", type=Path, help="the folder of the new repository")
    parser.add_argument("--keep", required=True, help=f"none, or some of {' '.join(NAMES)}")
    options = parser.parse_args()
    keep = {*options.keep.replace(",", " ").split()} - {"none"}
    return report(lambda: repository(options.target, keep, options.name), options.target)


if __name__ == "__main__":
    sys.exit(main())
