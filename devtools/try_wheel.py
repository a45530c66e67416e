"""``make wheel``: tries the built wheel in an empty environment and an empty folder.

First the queue alone, then the service. The packages of requirements/service.lock come from the network or
from pip's cache.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from devtools.postgres import Postgres
from devtools.processes import ROOT, free_port, log_end, wait_until
from devtools.valkey import private_valkey
from devtools.wheel import build_wheel

#: Files that must not be imported in place of the packages with these names.
SHADOWS = {"worker.py": "raise SystemExit('shadowed')", "orders.py": "raise SystemExit('shadowed')"}


class Installed:
    """A new environment for the wheel, and a folder to run its commands in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel = wheel
        self.bin = folder / "venv" / "bin"
        self.here = folder / "here"
        self.here.mkdir()
        self.env = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        self.env["PATH"] = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        venv.create(folder / "venv", with_pip=True)
        lock = (ROOT / "requirements/service.lock").read_text()
        #: The lock's versions without hashes: pip wants hashes for all packages or for none, and the
        #: wheel has none.
        self.versions = folder / "versions.txt"
        self.versions.write_text(
            "\n".join(re.findall(r"^[\w.\[\]-]+==[^\s\\]+(?: ;[^\\]+)?", lock, re.MULTILINE))
        )

    def install(self, extra: str = "") -> None:
        """Install the wheel, with its dependencies in the lock's versions."""
        show(f"pip install order-timeout{extra}")
        requirement = f"order-timeout{extra} @ {self.wheel.as_uri()}"
        self.run(
            "pip",
            "--disable-pip-version-check",
            "install",
            "-q",
            "-c",
            str(self.versions),
            requirement,
        )

    def run(self, *command: str, fails_with: str = "") -> str:
        """Run a command and return its output.

        Raises RuntimeError unless it succeeds or, with ``fails_with``, fails with this text.
        """
        show(" ".join(command) if len(" ".join(command)) < 100 else command[0])
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.here,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        expected = (
            fails_with in done.stderr and done.returncode if fails_with else not done.returncode
        )
        if not expected:
            raise RuntimeError(
                f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    @contextmanager
    def running(self, *command: str, within: str = "") -> Iterator[None]:
        """Run a command in the background."""
        show(f"{' '.join(command)} &")
        log = self.here / f"{command[0]}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(self.bin / command[0]), *command[1:]],
                cwd=self.here / within,
                env=self.env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{log_end(log)}") from error
        finally:
            process.terminate()
            process.wait()


def show(text: str) -> None:
    print(f"  {text}", flush=True)


def try_queue(installed: Installed) -> None:
    """The queue alone: a flow in an otherwise empty folder, and the errors about missing extras."""
    installed.install()
    needed = {"worker.records": "sqlalchemy>=2.1", "orders": "order-timeout[orders]"}
    for module, package in needed.items():
        installed.run("python", "-c", f"import {module}", fails_with=f"pip install '{package}'")
    installed.run("order-timeout", "stats", fails_with="No flows were named")
    page = (ROOT / "docs" / "install.md").read_text()
    [flow] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (installed.here / "reminders.py").write_text(flow)
    for name, text in SHADOWS.items():
        (installed.here / name).write_text(text)
    schedule = (
        "schedule",
        "visit-7",
        "--in",
        "0s",
        "--payload",
        "Ada",
        "--flows",
        "reminders:flows",
    )
    installed.run("order-timeout", *schedule)
    with installed.running("order-timeout", "run", "reminders:flows"):
        wait_until((installed.here / "reminded").exists, "the reminder")


def try_service(installed: Installed) -> None:
    """The service: migrate, and have an order cancelled, beside files named like its packages."""
    installed.install("[orders]")
    installed.env["ORDER_TIMEOUT_SECONDS"] = "1"
    installed.run("order-timeout-orders", "migrate")
    scopes = ("--scope", "orders", "--scope", "ops")
    key = installed.run("order-timeout-orders", "keys", "create", "shop", *scopes).strip()
    (installed.here / "elsewhere").mkdir()  # granian would import orders.py from its own folder
    port = free_port()
    granian = (
        "granian",
        "--interface",
        "wsgi",
        "--factory",
        "--port",
        str(port),
        "orders.app:create_app",
    )
    with (
        installed.running("order-timeout", "run", "orders.timeouts:flows"),
        installed.running(*granian, within="elsewhere"),
    ):
        shop = f"http://127.0.0.1:{port}"
        wait_until(lambda: call(f"{shop}/readyz"), "the API", ignoring=OSError)
        tea = {"on_hand": 1, "price_minor": 250, "currency": "EUR"}
        call(f"{shop}/v1/stock/tea", "PUT", key, tea)
        order = call(f"{shop}/v1/orders", "POST", key, {"items": [{"sku": "tea", "quantity": 1}]})
        path = f"{shop}/v1/orders/{order['id']}"
        wait_until(
            lambda: call(path, key=key)["status"] == "cancelled",
            "the order to be cancelled",
            every=0.1,
        )


def call(url: str, method: str = "GET", key: str = "", body: object = None) -> Any:
    """Send a request and return the response's JSON."""
    headers: Mapping[str, str] = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Idempotency-Key": "wheel-1",
    }
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, headers, method=method)  # noqa: S310  our own URL
    with urlopen(request, timeout=10) as response:  # noqa: S310
        return json.load(response)


def main() -> int:
    argparse.ArgumentParser(prog="python -m devtools.try_wheel", description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        installed = Installed(folder, build_wheel(folder))
        with private_valkey(folder / "valkey") as valkey:
            installed.env["REDIS_URL"] = valkey.url
            try_queue(installed)
            postgres = Postgres()
            try:
                installed.env["DATABASE_URL"] = postgres.start().url()
                try_service(installed)
            finally:
                postgres.remove()
    print("The wheel works.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
