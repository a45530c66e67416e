"""``make run``: the service to try by hand. Its data is kept under ``data/``."""

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from devtools import accounts, processes
from devtools.postgres import Postgres
from devtools.processes import Tail
from devtools.service import Service
from orders.queues import QUEUE
from orders.timeouts import MOST_LINES
from worker.console import duration

SESSION = """
The service is running. Ctrl-C stops it; its data stays under {data}.

  API           {url}
{pages}  logs          {folder}/api.log
                {folder}/worker.log
                {folder}/valkey/valkey.log
                {postgres_log}

Paste this into another terminal. It places an order that is not paid, so it is cancelled after 15 seconds.

  export KEY={key}
  curl -X PUT {url}/v1/stock/mug -H "Authorization: Bearer $KEY" \\
    -H 'Content-Type: application/json' -d '{{"on_hand":10,"price_minor":1250,"currency":"EUR"}}'
  curl -i {url}/v1/orders -H "Authorization: Bearer $KEY" -H "Idempotency-Key: $(date +%s)" \\
    -H 'Content-Type: application/json' \\
    -d '{{"items":[{{"sku":"mug","quantity":2}}],"timeout_seconds":15}}'
  curl {url}/v1/orders -H "Authorization: Bearer $KEY"     # again after 15 seconds
  curl {url}/v1/stock/mug -H "Authorization: Bearer $KEY"

For the worker's commands, such as a live view of the queue:

  export REDIS_URL={redis_url} DATABASE_URL={database_url}
  {python} -m worker stats --watch

Cancellations appear here as they happen:
"""
#: Below the API's URL.
PAGES: Mapping[str, str] = {
    "reference": "/docs",  # <openapi/>
    "for operators": "/ops   (log in with the key below)",  # <ops/>
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.run", description=__doc__)
    parser.add_argument(
        "--port", type=port, default=os.environ.get("PORT", "8000"), help="PORT, or 8000"
    )
    data = os.environ.get("DATA", processes.ROOT / "data")
    parser.add_argument("--data", type=Path, default=data, help="its folder: DATA, or data")
    options = parser.parse_args()
    folder: Path = options.data
    processes.interrupt_on_signals()
    log = Tail(folder / "worker.log")
    try:
        lock = alone(folder)
        postgres = Postgres(folder / "postgres")
        settings: Mapping[str, str] = {
            "WEBHOOK_ALLOW_PRIVATE": "1",  # <webhooks/>
        }
        with lock, Service(folder, options.port, settings, postgres=postgres) as service:
            url = f"http://localhost:{options.port}"
            key = accounts.create_key(
                service.env, f"demo-{time.time_ns() // 10**9}", "orders", "payments", "ops"
            )
            print(
                SESSION.format(
                    url=url,
                    pages="".join(f"  {name:<13} {url}{path}\n" for name, path in PAGES.items()),
                    key=key,
                    folder=_shown(folder),
                    data=" and ".join(map(_shown, _folders(folder, postgres.folder))),
                    postgres_log=_shown(postgres.log),
                    redis_url=service.env["REDIS_URL"],
                    database_url=service.env["DATABASE_URL"],
                    python=_shown(Path(sys.executable)),
                ),
                flush=True,
            )
            _show(log, service.running)
            print(f"A process ended on its own; see the logs under {folder}.", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0
    except (RuntimeError, OSError) as error:  # TimeoutError is an OSError
        print(error, file=sys.stderr)
        return 1


def port(text: str) -> int:
    """Raises ValueError."""
    if not 0 < int(text) < 65_536:
        raise ValueError(text)
    return int(text)


def alone(folder: Path) -> IO[str]:
    """A lock on the folder until it is closed. Raises RuntimeError if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        used = f"the service is running already, with its data in {_shown(folder)}"
        raise RuntimeError(f"{used}: for a second one, make run PORT=8001 DATA=/tmp/data") from None
    return lock


def _show(log: Tail, running: Callable[[], bool]) -> None:
    """Print cancellations until a process ends on its own.

    Not in ``main``: in Python 3.12 and 3.13 the jump back to the head of a loop may lie outside the
    ``try`` around it, so a Ctrl-C at that moment would end this process without stopping the others.
    """
    while running():
        for event in log.events():
            if line := line_of(event):
                print(line, flush=True)
        time.sleep(0.1)


def line_of(event: Mapping[str, Any]) -> str | None:
    """The line to print for an event in the worker's log, or None."""
    match event:
        case {"event": "order cancelled", "order": order, "late_ms": late_ms}:
            said = f"order {order} cancelled, {duration(late_ms)} after its deadline"
        case {"event": "batch", "queue": queue, "tasks": tasks, "late_ms": late_ms} if (
            queue == QUEUE and tasks > MOST_LINES
        ):
            said = f"{tasks} due orders handled in one batch, the earliest {duration(late_ms)} late"
        case _:
            return None
    at = datetime.fromisoformat(event["timestamp"]).astimezone()
    return f"{at:%H:%M:%S}  {said}"


def _folders(folder: Path, database: Path) -> list[Path]:
    """Where the data are: for root PostgreSQL's may be elsewhere."""
    return [folder] if database.is_relative_to(folder) else [folder, database]


def _shown(path: Path) -> str:
    """A path as the user would type it in the current folder."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
