"""What `make new` writes, built and run as its reader does."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from devtools.processes import ROOT, Process, free_port, wait_until
from devtools.valkey import Valkey
from tests.kit.clock import bound

NAME, PACKAGE = "zebra-crossing", "zebra_crossing"
#: Until the API answers.
WAIT = "curl -so /dev/null --retry 60 --retry-delay 1 --retry-connrefused 127.0.0.1:8000"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def attempt(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command there, and nothing of this checkout in it."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command, cwd=folder, env={**ours, **env}, capture_output=True, text=True, check=False
    )


def run(folder: Path, *command: str, **env: str) -> str:
    done = attempt(folder, *command, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new repository, with its own environment."""
    made = tmp_path_factory.mktemp("new") / NAME
    run(ROOT, sys.executable, "-m", "devtools.new", NAME, str(made))
    run(made, "make", "install", f"PYTHON={sys.executable}")
    return made


def test_a_new_repository_passes_its_checks_and_plays_its_demo(repository: Path) -> None:
    run(repository, "make", "check")
    played = run(repository, "make", "demo")
    assert "first: expired\nsecond: finished\n" in played  # make may say more


def test_its_tests_take_less_than_a_minute(repository: Path) -> None:
    began = time.monotonic()
    assert "5 passed" in run(repository, "make", "test")
    assert time.monotonic() - began <= bound(60)


BUGS = {
    "the handler expires nothing": (
        "models.py",
        'values(status="expired")',
        "values(id=table.c.id)",
    ),
    "what has expired can be finished": (
        "app.py",
        "table.c.id == each, PENDING",
        "table.c.id == each",
    ),
    "a request waits for Redis": ("app.py", "BatchScheduler(timed.queue)", "timed.queue"),
    "a table that no migration makes": ("models.py", "sa.String(9)", "sa.String(10)"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_its_tests_find_a_broken_promise(repository: Path, bug: str) -> None:
    file, right, wrong = BUGS[bug]
    path = repository / PACKAGE / file
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    try:
        done = attempt(repository, ".venv/bin/python", "-m", "pytest", "-q", "-x")
    finally:
        path.write_text(text)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


def test_its_image_has_all_that_its_commands_need(
    repository: Path, tmp_path: Path, database_url: str, valkey: Valkey
) -> None:
    """As the Dockerfile makes it, without Docker: the files that are not ignored, and the service's packages."""
    kept = re.findall(r"^!(\S+)$", (repository / ".dockerignore").read_text(), re.MULTILINE)
    for name in kept:
        source, copy = repository / name, tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    run(tmp_path, sys.executable, "-m", "venv", "venv")
    lock = "requirements/service.lock"
    run(tmp_path, "venv/bin/pip", "install", "--quiet", "--require-hashes", "-r", lock)
    compose = (repository / "docker-compose.yml").read_text()
    migrate, worker, api = (
        [word.strip('"') for word in line.split(", ")]
        for line in (
            re.findall(rf"^  {service}:\n.*\n    command: \[(.*)\]$", compose, re.MULTILINE)[0]
            for service in ("migrate", "worker", "api")
        )
    )
    env = {"DATABASE_URL": database_url, "REDIS_URL": valkey.url}
    run(tmp_path, f"venv/bin/{migrate[0]}", *migrate[1:], **env)
    port = free_port()
    api = [word.replace("--port=8000", f"--port={port}") for word in api]
    with serving(tmp_path, [api, worker], env):
        url = f"http://127.0.0.1:{port}/{NAME}/a"
        begin = Request(f"{url}?seconds=0.2", method="POST")  # noqa: S310  our own URL
        wait_until(lambda: urlopen(begin), "the API", ignoring=URLError)  # noqa: S310
        wait_until(lambda: b"expired" in urlopen(url).read(), "the worker")


@contextmanager
def serving(folder: Path, commands: list[list[str]], env: dict[str, str]) -> Iterator[None]:
    started = []
    try:
        for n, (program, *rest) in enumerate(commands):
            # In its folder, as in the image.
            command = ["env", "-C", str(folder), f"{folder}/venv/bin/{program}", *rest]
            started.append(Process(command, folder / f"{n}.log", env))
        yield
    finally:
        for process in started:
            process.stop()


def test_its_readme_says_how_to_run_it_by_hand(
    repository: Path, database_url: str, valkey: Valkey
) -> None:
    readme = (repository / "README.md").read_text()
    [block] = re.findall(r"```sh\n(export PATH.*?)```", readme, re.DOTALL)
    lines = [line.partition(" #")[0] for line in block.splitlines()]
    by_hand = [line for line in lines if "devtools" not in line and "export DATABASE" not in line]
    script = "\n".join(by_hand).replace("sleep 5", WAIT).replace("8000", str(free_port()))
    script = f"trap 'kill $(jobs -p)' EXIT\n{script}"
    env = {"DATABASE_URL": database_url, "REDIS_URL": valkey.url}
    said = attempt(repository, "bash", "-c", script, **env)
    assert said.stdout.count('"status":"pending"') == 2, said.stdout + said.stderr


def test_what_its_pages_link_to_is_there(repository: Path) -> None:
    pages = [repository / "README.md", *(repository / "docs").glob("*.md")]
    assert len(pages) == 3
    for page in pages:
        links = re.findall(r"\]\((?!https:)([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == []
        assert "python -m examples" not in page.read_text()


def test_a_new_repository_says_nothing_of_orders(repository: Path) -> None:
    ours = [
        path
        for path in repository.rglob("*")
        if path.is_file()
        and path.relative_to(repository).parts[0] not in (".venv", "worker")
        and path.suffix not in (".pyc", ".json")
        and "_cache" not in str(path)
    ]
    assert len(ours) > 20
    source = "the engine of order-timeout "  # named once, with its version
    assert source in (repository / "README.md").read_text()
    assert [
        path
        for path in ours
        if re.search(r"orders\b|order-timeout", path.read_text().replace(source, ""))
    ] == []
    for kind in ("service", "dev"):
        lock = (repository / "requirements" / f"{kind}.lock").read_text()
        assert "//" not in lock, "the host of an index"
    engine = "".join(path.read_text() for path in (repository / "worker").rglob("*.py"))
    assert re.findall(r"pip install '?order-timeout", engine) == []
