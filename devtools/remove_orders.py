"""``make remove-orders``: keep only the engine, and what you need to write and test your own flows.

Run it once, in a clean checkout; git can restore everything. In the files that stay, lines between <orders> and
</orders> are cut. Modules and tests that use something that was removed are removed, too.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from devtools.processes import ROOT

#: The files that stay, unless they need something that is gone.
KEPT = (
    *("LICENSE", "Makefile", "alembic.ini", "pyproject.toml"),
    *(".ci/run", ".editorconfig", ".gitignore", ".pre-commit-config.yaml", ".github/workflows/*"),
    *("requirements/service.lock", "requirements/demo.lock", "requirements/dev.lock"),
    *("docs/decisions.md", "docs/reference.md", "docs/writing-a-flow.md"),
    *("worker/*", "devtools/*", "examples/*", "tests/*.py"),
    *("migrations/env.py", "migrations/script.py.mako"),
)
#: These start the orders or are about them, which their imports do not show.
GONE = (
    "devtools/remains/*",
    *(f"devtools/{each}.py" for each in ("make_env", "remove_orders", "run", "service")),
    *(f"devtools/{each}.py" for each in ("chromium", "screenshots", "try_wheel", "wheel")),
    *(
        f"tests/integration/test_{each}.py"
        for each in ("logs", "messages", "monitoring", "remove_orders")
    ),
    *(f"tests/unit/test_{each}.py" for each in ("monitoring", "tour", "versions", "wheel")),
)
#: Modules in these folders are removed if they need something that is gone.
PACKAGES = ("devtools", "examples", "tests")
TARGETS = {"help", "install", "test", "check", "new", "lock", "clean"}
MARKED = re.compile(r"^[ \t]*(?:#|<!--) <orders>.*?</orders>[^\n]*\n", re.MULTILINE | re.DOTALL)
#: The texts that replace README, CHANGELOG and .ci/run.
REMAINS = Path(__file__).parent / "remains"
#: What is removed from pyproject.toml; its description is replaced.
LINES = (
    r'^description = "(.*)"',
    r'^"(?:benchmarks|docs/site|tests/faults/soak|tests/fuzz).*\n',
    r"^(?:#.*\n)*(?:bench|docs|fuzz) = \[(?:.*|\n(?: .*\n)*)\]\n",
    r"^\[\[tool\.mypy\.overrides\]\]\n# Installed for benchmarks.*\n(?:.+\n)*\n",
    r"^orders = \[.*py\.typed.*\n",
    r'^exclude = \["\^orders.*\n',
    r"^\[tool\.worker\]\nflows = .*\n\n",
    r'^.*"orders\.__main__.*\n',
    r'"(?:orders\*?|benchmarks)", |, "benchmarks"(?=\])',
)


def remove(root: Path) -> tuple[list[str], list[str]]:
    """Remove the orders from a checkout. Returns the paths that were removed and those that changed."""
    before = dict(_files(root))
    remains = {path.stem: path.read_text() for path in REMAINS.iterdir()}
    for name in before:
        path = root / name
        if path.exists() and not _is(name, KEPT):
            path.unlink()
    for name in before:
        if (root / name).exists() and _is(name, GONE):
            (root / name).unlink()
    cut = _cut_marked(root)
    while broken := [path for path in _modules(root) if _needs_what_is_gone(root, path, cut)]:
        for path in broken:
            path.unlink()
    _write_what_remains(root, remains)
    _tidy(root)
    after = dict(_files(root))
    gone = sorted(before.keys() - after.keys())
    return gone, sorted(name for name in after if after[name] != before.get(name))


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    """The files that git tracks or would add, with their contents."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).is_symlink():
            yield name, b""
        elif (root / name).is_file():
            yield name, (root / name).read_bytes()


def _is(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _modules(root: Path) -> list[Path]:
    return [path for top in PACKAGES for path in (root / top).rglob("*.py")]


def _cut_marked(root: Path) -> dict[str, set[str]]:
    """Cut what is between the marks. Returns the names that each module no longer defines."""
    cut = {}
    for name, content in _files(root):
        if name.endswith((".py", ".md", ".toml", ".ini")) and MARKED.search(content.decode()):
            text = MARKED.sub("", content.decode())
            (root / name).write_text(text)
            if name.endswith(".py"):
                module = name.removesuffix(".py").replace("/", ".")
                cut[module] = _defined(content.decode()) - _defined(text)
    _fix_imports(root)
    return cut


def _defined(text: str) -> set[str]:
    """The functions, classes and constants that a module defines."""
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _needs_what_is_gone(root: Path, path: Path, cut: dict[str, set[str]]) -> bool:
    """Whether a module imports a module or name of ours that is gone, or uses such a fixture."""
    text = path.read_text()
    fixtures = set[str]().union(*(cut[each] for each in cut if each.endswith(".conftest")))
    fixtures -= _defined(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and path.name.startswith("test_"):
            gone = not fixtures.isdisjoint(argument.arg for argument in node.args.args)
        elif isinstance(node, ast.Import):
            gone = any(_is_gone(root, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {alias.name for alias in node.names}
            gone = not names.isdisjoint(cut.get(node.module, ())) or any(
                _is_gone(root, module)
                for module in (node.module, *(f"{node.module}.{name}" for name in names))
                if module == node.module or node.module in PACKAGES
            )
        else:
            continue
        if gone:
            return True
    return False


def _is_gone(root: Path, module: str) -> bool:
    """Whether this was one of our modules, and is gone."""
    path = root.joinpath(*module.split("."))
    ours = module.partition(".")[0] in ("orders", "benchmarks", "worker", *PACKAGES)
    return ours and not path.with_suffix(".py").exists() and not (path / "__init__.py").exists()


def _write_what_remains(root: Path, remains: dict[str, str]) -> None:
    for name in ("README.md", "CHANGELOG.md"):
        (root / name).write_text(remains[name])
    (root / ".ci" / "run").write_text(remains["ci"])
    _edit_pyproject(root / "pyproject.toml")
    ini = root / "alembic.ini"
    ini.write_text(re.sub(r"^\[alembic\]\n(?:.+\n)*", "", ini.read_text(), flags=re.MULTILINE))
    makefile = root / "Makefile"
    makefile.write_text(_targets(makefile.read_text()))
    for page in (root / "docs").glob("*.md"):  # a link to a file that is gone becomes plain text

        def unlinked(found: re.Match[str], page: Path = page) -> str:
            target = found[2].partition("#")[0]
            there = not target or ":" in target or (page.parent / target).exists()
            return found[0] if there else found[1]

        page.write_text(re.sub(r"\[([^\]]*)\]\(([^)\s]*)\)", unlinked, page.read_text()))


def _edit_pyproject(path: Path) -> None:
    text = path.read_text()
    for pattern in LINES:
        new = 'description = "Timeouts and delayed tasks."' if pattern.startswith("^desc") else ""
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    path.write_text(text)


def _targets(makefile: str) -> str:
    """The Makefile without the paragraphs of targets that go."""
    kept = []
    for paragraph in makefile.split("\n\n"):
        targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", paragraph, re.MULTILINE))
        other = re.search(r"^\$\(VENV\)/(?:demo|bench|fuzz|docs):", paragraph, re.MULTILINE)
        if not other and targets <= TARGETS:
            kept.append(paragraph)
    text = "\n\n".join(kept).rstrip() + "\n"
    text = re.sub(r"^.*--extra (?:bench|docs|fuzz).*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^\.PHONY: .*", f".PHONY: {' '.join(sorted(TARGETS))}", text, flags=re.MULTILINE)


def _fix_imports(root: Path) -> None:
    """Remove imports that are no longer used."""
    ruff = [sys.executable, "-m", "ruff", "--quiet"]
    subprocess.run([*ruff, "check", "--fix", "--select", "F401,I", "."], cwd=root, check=True)
    subprocess.run([*ruff, "format", "."], cwd=root, check=True)


def _tidy(root: Path) -> None:
    _fix_imports(root)
    for top in (path for path in root.iterdir() if path.is_dir() and path.name[0] != "."):
        for cache in [*top.rglob("__pycache__")]:
            shutil.rmtree(cache)
        for folder in sorted([top, *top.rglob("*")], reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.remove_orders", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="list what would be removed or changed, and change nothing",
    )
    options = parser.parse_args()
    status = ["git", "status", "--porcelain"]
    found = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode or found.stdout:
        print(
            "This needs a git checkout without uncommitted changes. Commit or stash them first.",
            file=sys.stderr,
        )
        return 2
    if options.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            clone = ["git", "clone", "--quiet", str(ROOT), folder]
            subprocess.run(clone, check=True)
            gone, changed = remove(Path(folder))
        print(
            *(f"remove {name}" for name in gone), *(f"change {name}" for name in changed), sep="\n"
        )
        return 0
    if not options.yes and input("Remove the order service from this checkout? [y/N] ") != "y":
        print("Nothing was changed.")
        return 1
    gone, changed = remove(ROOT)
    print(f"Removed {len(gone)} files, changed {len(changed)}. Review them with git status, then:")
    print("\n  make check\n  make test\n  make new NAME=seat-hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
