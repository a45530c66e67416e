"""What is left of a checkout once the orders are removed passes its checks and tests, and is one to build on."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.processes import ROOT, free_port

#: A quick part of what is left.
TESTS = (
    *("tests/unit/test_architecture.py", "tests/unit/test_reference.py"),
    *("tests/unit/test_worker_cli.py", "tests/integration/test_seat_hold.py"),
)


def run(folder: Path, *command: str) -> str:
    """Run a command in the copy; returns what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            "MYPY_CACHE_DIR": str(folder / ".mypy_cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(folder: Path, *module: str) -> str:
    return run(folder, sys.executable, "-m", *module)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """This checkout, committed."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    made = tmp_path / "copy"
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", "data", "__pycache__", "node_modules", ".*_cache"
    )
    shutil.copytree(ROOT, made, symlinks=True, ignore=ignored)
    run(made, "git", "init", "--quiet")
    run(made, "git", "add", "--all")
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    run(made, "git", *who, "commit", "--quiet", "--message", "all")
    return made


@pytest.mark.timeout(1800)
def test_what_is_left_passes_its_checks_and_tests_and_takes_a_new_service(copy: Path) -> None:
    planned = python(copy, "devtools.remove_orders", "--dry-run")
    assert run(copy, "git", "status", "--porcelain") == ""

    assert "make new" in python(copy, "devtools.remove_orders", "--yes")

    run(copy, "git", "add", "--all")
    status = run(copy, "git", "diff", "--cached", "--name-status", "--no-renames").splitlines()
    verbs = {"D": "remove", "M": "change", "A": "change"}
    assert {f"{verbs[line[0]]} {line[2:]}" for line in status} == {*planned.splitlines()}
    assert not (copy / "orders").exists()
    assert_nothing_points_at_what_is_gone(copy)

    told = python(copy, "devtools.new", "seat-hold")
    for check in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        python(copy, *check)
    python(copy, "pytest", "-q", "-p", "no:xdist", *TESTS)
    python(copy, "pytest", "-q", "-p", "no:xdist", "--setup-plan")  # every fixture is there
    assert_the_session_works(copy, told)


def assert_the_session_works(copy: Path, told: str) -> None:
    """What `make new` says to paste, on other ports."""
    session, _, rest = told.partition("paste this")[2].partition("\n\n")[2].partition("\n\n")
    [ended] = re.findall(r"^ *(kill .*)$", rest, flags=re.MULTILINE)
    port, redis_port = str(free_port()), str(free_port())
    session = session.replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
    session = session.replace("devtools.valkey", f"devtools.valkey {redis_port}")
    session = session.replace("6379", redis_port).replace("5000", port)
    session = session.replace("app run &", f"app run --port {port} &").replace(
        "seconds=10", "seconds=1"
    )
    began, looked = re.split(r"^ *(?=curl localhost)", session, flags=re.MULTILINE)
    until = f"until {looked.partition('#')[0].strip()} | grep expired; do sleep 0.2; done"
    printed = run(copy, "bash", "-c", f"set -em\n{began}\n{looked}\n{until}\n{ended}\nwait")
    assert '"status":"pending"' in printed
    assert '"status":"expired"' in printed


def assert_nothing_points_at_what_is_gone(copy: Path) -> None:
    makefile = (copy / "Makefile").read_text()
    pages = [copy / "README.md", *(copy / "docs").glob("*.md")]
    assert len(pages) == 4
    for page in pages:
        text = page.read_text()
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page, target)
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / link).exists(), (page, link)
        for path in re.findall(
            r"`((?:orders|tests|benchmarks|devtools|examples|worker)/[\w./]+)`", text
        ):
            assert (copy / path).exists(), (page, path)
    for page in (*pages, copy / "Makefile", copy / "pyproject.toml"):
        assert not re.search(r"\borders[./]\w", page.read_text()), page


def test_a_checkout_with_changes_is_left_alone(copy: Path) -> None:
    (copy / "README.md").write_text("mine\n")
    command = [sys.executable, "-m", "devtools.remove_orders", "--yes"]
    env = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Commit or stash them first" in done.stderr
    assert (copy / "README.md").read_text() == "mine\n"
    assert (copy / "orders").exists()
