"""The README and the pages under docs/, and the blocks of code in them."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from devtools.processes import ROOT


def page(name: str) -> str:
    return (ROOT / name).read_text()


README = page("README.md")
INDEX = page("docs/index.md")
CONFIGURATION = page("docs/configuration.md")
HTTP_API = page("docs/http-api.md")
PAYMENTS = page("docs/payments.md")
OPERATIONS = page("docs/operations.md")
UPGRADING = page("docs/upgrading.md")
MONITORING = page("docs/monitoring.md")
FLOWS = page("docs/writing-a-flow.md")
COPY_IT = page("docs/copy-it.md")
TOUR = page("docs/tour.md")
#: Every page whose blocks are run, and what it is called in a test.
PAGES = {
    path: path.read_text()
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("orders/features/*/README.md"),
        ROOT / "tests" / "README.md",
    ]
}

#: A part of each block that no test runs, and why. Its targets are checked to exist.
NOT_RUN = {
    "[ unpaid ]": "a drawing",
    " customer      API ": "a drawing",
    # <cut>
    "make new NAME=parking IN=": "project/test_cut.py writes such repositories and checks them",
    # </cut>
    "make new NAME=seat-hold IN=": "project/test_new.py writes a repository and checks it",
    "make demo    #": "test_examples.py plays the demo; the other is the test suite",
    "VALKEY_SERVER=redis-server make demo": ".ci/run does it",
    "docker compose up --build": "needs Docker; project/test_compose.py tests the file",
    "docker compose --profile monitoring": "needs Docker; metrics/test_monitoring.py tests the files",
    "promtool check rules": "metrics/test_monitoring.py runs promtool, if there is one",
    "SITE_ADDRESS=": "needs a domain",
    "systemctl enable --now ": "needs systemd; project/test_deploy.py verifies the units",
    "kubectl apply -k deploy/kubernetes": "needs a cluster; project/test_deploy.py checks the manifests",
    "ssh -L 8001:": "needs another machine",  # <ops/>
    "def release(connection": "records/test_records.py finds it in the example, and runs that",
    "pip install 'order-timeout[tracing]'": "needs a collector, and packages beyond the lock files'",  # <traces/>
    "run-now --queue retention": "retention/test_faults.py runs it, with providers",  # <retention/>
    "make install        #": "how tests are run",
    "pip install .  ": "make wheel installs the wheel, in .ci/run",
    'Path("reminded")': "make wheel runs it, in .ci/run",
    "python -m worker schedule visit-7": "make wheel runs it, in .ci/run",
    "make test N=3": "how tests are run",
    "GRANT CREATE ON SCHEMA": "db/test_rights.py serves with exactly these",
}


def all_blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def blocks(language: str, page: str = README) -> list[str]:
    """The blocks of this language, in the order of the page."""
    return [block for found, block in all_blocks(page) if found == language]


def the_block(language: str, containing: str, page: str = README) -> str:
    """The only block of this language that contains this text."""
    [block] = [block for block in blocks(language, page) if containing in block]
    return block


def blocks_in_tests() -> Iterator[str]:
    """The blocks that some test names in a call of `blocks` or `the_block`."""
    for path in sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}):
        text = path.read_text()
        found = re.search(r'^PAGE = page\("(.*)"\)$', text, re.MULTILINE)
        own = {"PAGE": page(found[1])} if found else {}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "blocks":
                    yield from blocks(*_values(node, own))
                elif node.func.id == "the_block":
                    yield the_block(*_values(node, own))


def unaccounted(pages: dict[Path, str]) -> list[str]:
    """The blocks that no test runs, without a reason for it."""
    known = {*blocks_in_tests()}
    return [
        f"{path.relative_to(ROOT)}: {block}"
        for path, text in pages.items()
        for _, block in all_blocks(text)
        if block not in known and not any(part in block for part in NOT_RUN)
    ]


def _values(call: ast.Call, own: dict[str, str]) -> list[str]:
    """The arguments: texts, and the names of pages, here or the test's own."""
    known = {**globals(), **own}
    return [
        str(known[each.id] if isinstance(each, ast.Name) else ast.literal_eval(each))
        for each in call.args
    ]


PATH = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def bash(script: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],  # noqa: S607
        env={**os.environ, **PATH, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
