"""What `pip install` gets: the wheel has every file that the code reads, and asks for little."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from devtools.processes import ROOT
from devtools.wheel import build_wheel

#: What `worker` imports, but for its extras.
QUEUE_ALONE = {"click", "cronsim", "redis", "rich", "structlog", "tzdata"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode())


def required(wheel: Path, extra: str) -> set[str]:
    """The names of the packages that an extra asks for; "" for those that nobody need ask for."""
    found = set()
    for line in metadata(wheel).get_all("Requires-Dist", ()):
        needed, _, marker = line.partition(";")
        of = re.search(r'extra == "(\w+)"', marker)
        if (of[1] if of else "") == extra:
            found.add(re.split(r"[\[<>=! ;]", needed)[0])
    return found


def test_the_wheel_has_every_file_of_both_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(ROOT))
        for package in ("orders", "orders/migrations", "worker")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md", ".png")
    }
    sources.add("orders/guides/runbook.md")
    assert packed == sources
    assert {"worker/queue/lua/claim.lua", "orders/migrations/env.py", "worker/py.typed"} <= packed
    assert "orders/migrations/versions/0001_core.py" in packed


def test_the_queue_alone_asks_for_six_packages(wheel: Path) -> None:
    assert required(wheel, "") == QUEUE_ALONE
    assert required(wheel, "records") == {"sqlalchemy"}
    assert required(wheel, "metrics") == {"prometheus-client"}
    orders = required(wheel, "orders")
    assert {"alembic", "flask", "psycopg", "order-timeout"} <= orders


@pytest.mark.parametrize(
    ("missing", "imported", "needed"),
    [
        ("sqlalchemy", "worker.records", "sqlalchemy>=2.1"),
        ("granian", "orders.timeouts", "order-timeout[orders]"),
    ],
)
def test_without_a_package_an_import_says_which_to_install(
    missing: str, imported: str, needed: str
) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import {imported}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.endswith(f"pip install '{needed}'\n")


@pytest.mark.parametrize(
    "start",
    [
        "sys.argv = ['/venv/bin/order-timeout-orders', 'migrate']; from orders.__main__ import main",
        "sys.argv = ['-m', 'migrate']; runpy._run_module_as_main('orders')",
    ],
    ids=["installed", "module"],
)
def test_without_its_extra_the_services_command_says_so(start: str) -> None:
    code = f"import runpy, sys; sys.modules['granian'] = None; {start}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    sentence = "The order service needs more than the queue: pip install 'order-timeout[orders]'"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {sentence}\n")


def test_the_page_lists_the_extras_that_users_need() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*project["optional-dependencies"]} - {"demo", "dev", "long", "fuzz", "bench", "docs"}
    assert {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)} == extras


def test_every_command_of_the_page_is_one_that_is_tried() -> None:
    """`make wheel` runs them; the files are read here because that needs the network."""
    page = (ROOT / "docs" / "install.md").read_text()
    tried = (ROOT / "devtools" / "try_wheel.py").read_text().replace('", "', " ")
    blocks = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    # By the names that a file beside them does not hide.
    blocks = blocks.replace("python -m worker", "order-timeout")
    blocks = blocks.replace("python -m orders", "order-timeout-orders")
    commands = re.findall(r"^order-timeout\S* \S+", blocks, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        program, _, rest = command.partition(" ")
        assert f'"{program}' in tried
        assert rest.split()[0] in tried


def test_the_wheel_installs_both_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "order-timeout = worker.cli:main" in text
    assert "order-timeout-orders = orders.__main__:main" in text
