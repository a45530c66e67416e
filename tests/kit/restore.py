"""A backup, and a database that it is restored into, as docs/operations.md says."""

import os
import subprocess
from pathlib import Path

import sqlalchemy as sa

from devtools.postgres import binary
from orders.db.database import reading
from tests.kit.pages import OPERATIONS, the_block
from tests.kit.states import states, status

DUMP = the_block("sh", "pg_dump", OPERATIONS)
RESTORE = the_block("sh", "pg_restore", OPERATIONS)


def dump_and_restore(url: str, to: str, folder: Path) -> None:
    """What the page says."""
    for block in (DUMP, RESTORE):
        run_block(block, url, to, folder)


def run_block(block: str, url: str, to: str, folder: Path) -> None:
    programs = Path(binary("pg_dump")).parent
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "DATABASE": url.replace("+psycopg", ""),
        "EMPTY_DATABASE": to.replace("+psycopg", ""),
    }
    environ = {**os.environ, **env}
    subprocess.run(["/bin/bash", "-ec", block], cwd=folder, env=environ, check=True)


def statuses(engine: sa.Engine) -> dict[str, str]:
    with reading(engine) as connection:
        rows = connection.execute(sa.select(states.c.order_id, status))
        return {row.order_id: row.status for row in rows}
