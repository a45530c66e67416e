"""Requests that schemathesis makes of the API's description, to the real service.

    python -m tests.openapi.fuzz --examples 500

All its checks and phases: the examples, the edges of every bound, random requests, and sequences of
them that it infers from ids and Location, by two clients. Exits with 1 when a response is not as
documented. Needs the packages of requirements.lock beside it, which `make fuzz` installs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from devtools import accounts, processes
from devtools.processes import ROOT, free_port
from devtools.service import Service
from tests.openapi.fuzz import SKUS

CONFIG = Path(__file__).with_name("schemathesis.toml")
#: Two clients that must not see each other's things, and the shop's back office.
CLIENTS = {"one": ("orders", "payments"), "other": ("orders", "payments"), "office": ("ops",)}


#: No limits: 429 would hide what comes after it.
LIMITS = {
    "RATE_LIMIT_PER_SECOND": "1000000",  # <throttling/>
    # <limits>
    "MAX_UNPAID_ORDERS": "0",
    "MAX_HELD_PIECES": "0",
    # </limits>
}


def fuzz(service: Service, examples: int, seed: int | None) -> int:
    """Run schemathesis on a service; return its exit status."""
    for sku in SKUS:
        line = ["flask", "--app", "orders.app", "stock", "set", sku, "--currency", "EUR"]
        processes.run([*line, "--on-hand", "1000000", "--price-minor", "1250"], service.env)
    clients = service.folder / "clients.json"
    clients.write_text(json.dumps({"auth": [_client(service, name) for name in CLIENTS]}))
    # <providers>
    endpoint = processes.run(
        ["flask", "--app", "orders.app", "providers", "add", "one", "bank"], service.env
    )
    path, secret = endpoint.split()
    # </providers>
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
    command += [f"{service.base_url}/openapi.json", "--max-examples", str(examples)]
    command += [] if seed is None else ["--seed", str(seed)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FUZZ_CLIENTS": str(clients)}
    env |= {"FUZZ_ENDPOINT": path, "FUZZ_SECRET": secret}  # <providers/>
    return subprocess.run(command, cwd=service.folder, env=env, check=False).returncode


def _client(service: Service, name: str) -> dict[str, object]:
    key = accounts.create_key(service.env, name, *CLIENTS[name])
    return {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {key}"}]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=500, help="for each operation and phase")
    parser.add_argument("--seed", type=int, help="of a run that failed")
    options = parser.parse_args()
    failed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(Path(folder), free_port(), LIMITS) as service,
    ):
        failed |= fuzz(service, options.examples, options.seed)
        log = (service.folder / "api.log").read_text()
        for line in log.splitlines():
            if "unexpected error" in line:
                print(line, file=sys.stderr)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
