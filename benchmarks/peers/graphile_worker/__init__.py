"""Graphile Worker on PostgreSQL, in Node: the fastest task queue found in any language."""

import os
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from psycopg.types.json import Json

FOLDER = Path(__file__).parent
COMMAND = FOLDER / "node_modules" / ".bin" / "graphile-worker"


def prepare() -> None:
    """Create its tables anew."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("DROP SCHEMA IF EXISTS graphile_worker CASCADE")
    subprocess.run([COMMAND, "--schema-only"], check=True, capture_output=True)


def enqueue(order_ids: Iterable[str]) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.cursor().executemany(
            "SELECT graphile_worker.add_job('cancel', %s)",
            [[Json(order_id)] for order_id in order_ids],
        )


def schedule(due_ms: Iterable[float]) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.cursor().executemany(
            "SELECT graphile_worker.add_job('note', %s, run_at => %s)",
            [[Json(due), datetime.fromtimestamp(due / 1000, UTC)] for due in due_ms],
        )
