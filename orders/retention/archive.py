"""Orders that were deleted, in files of JSON lines.

Each batch is a file of its own, which is there whole or not at all. It is named after the first and the
last of its orders, so that an order is found by its id, and so that a batch which is deleted again after
a crash is the same file again. Read all of them with ``zcat ARCHIVE_DIR/*.jsonl.gz``.
"""

import fcntl
import gzip
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from orders.errors import ArchiveUnavailable

SUFFIX = ".jsonl.gz"
#: What may be about a person, in the rows of an order.
PERSONAL = {"client_reference", "metadata", "body", "last_body"}

#: An order's rows, by table.
Rows = dict[str, list[dict[str, Any]]]


class Archive:
    """A folder, which has to exist. Raises ArchiveUnavailable from every method that writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, documents: Mapping[str, str]) -> None:
        """Write a batch, in the order of its ids: of each order all rows, as one line of JSON.

        When this returns, it is on the disk.
        """
        ids = [*documents]
        self._replace(self._folder / f"{ids[0]}_{ids[-1]}{SUFFIX}", documents.values())

    def erase(self, order_id: str) -> list[Rows]:
        """Erase a person's data from an order wherever it is; return what there was of it."""
        try:
            lock = (self._folder / "lock").open("w")
        except OSError as error:
            raise ArchiveUnavailable(str(error)) from error
        with lock:  # two at a time would undo each other
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._erase(order_id)

    def _erase(self, order_id: str) -> list[Rows]:
        found: list[Rows] = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            first, _, last = path.name.removesuffix(SUFFIX).partition("_")
            if not first <= order_id <= last:
                continue
            lines = gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
            for number, line in enumerate(lines):
                rows: Rows = json.loads(line) if order_id in line else {"orders": [{"id": None}]}
                if rows["orders"][0]["id"] == order_id:
                    found.append(rows)
                    lines[number] = _erased(rows)
                    self._replace(path, lines)
        return found

    def _replace(self, path: Path, lines: Iterable[str]) -> None:
        data = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
        try:
            with NamedTemporaryFile(dir=self._folder, suffix=".part", delete=False) as file:
                part = Path(file.name)
                try:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    part.replace(path)
                except OSError:
                    part.unlink(missing_ok=True)
                    raise
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ArchiveUnavailable(str(error)) from error


def _erased(rows: Rows) -> str:
    """An order's line without what may be about a person."""
    less = {
        name: [row | dict.fromkeys(PERSONAL & row.keys()) for row in found]
        for name, found in rows.items()
    }
    return json.dumps(less, ensure_ascii=False)
