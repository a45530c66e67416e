"""How tasks and ids are written in Redis."""

import math
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ..flow import Due, checked_delay
from .replies import Settlement

T = TypeVar("T")

#: Scripts work on at most this many tasks, so that none blocks the server for long. The exception is a
#: claim, which takes up to `MAX_BATCH_SIZE`.
SLICE = 500
#: Scripts copy at most this many bytes of payloads or dead letters, unless a single one is larger. A claim
#: has the same limit.
SLICE_BYTES = 2**20
#: Due times are zset scores, which are doubles: exact integers up to here.
MAX_DUE_AT_MS = 2**53 - 1
#: A claim of a larger payload would take longer than its caller waits.
MAX_PAYLOAD_BYTES = 2**24


def task_to_schedule(
    task_id: str, due_at_ms: float | None, payload: bytes, delay_ms: float | None
) -> tuple[str, float, bytes] | Due:
    """One task for `row_of`. Raises ValueError unless it has either a time or a delay."""
    if due_at_ms is not None and delay_ms is None:
        return task_id, due_at_ms, payload
    if delay_ms is not None and due_at_ms is None:
        return Due(task_id, checked_delay(delay_ms), payload)
    raise ValueError("a task is scheduled with either due_at_ms or delay_ms, not both")


def slices(rows: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    """The rows of each call of a script."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def packed(settlements: Iterable[Settlement]) -> Iterator[list[Settlement]]:
    """The settlements of each call of a script."""
    part, room = list[Settlement](), SLICE
    for each in settlements:
        for tasks in slices(each.tasks):
            if part and len(tasks) > room:
                yield part
                part, room = [], SLICE
            part.append(each._replace(tasks=tasks))
            room -= len(tasks)
    if part:
        yield part


def slices_by_size(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """The rows of each call of a script that copies the last value of each row."""
    start, room = 0, SLICE_BYTES
    for n, row in enumerate(rows):
        room -= len(row[-1])
        if n > start and (n - start == SLICE or room < 0):
            yield rows[start:n]
            start, room = n, SLICE_BYTES - len(row[-1])
    if rows:
        yield rows[start:]


def row_of(task: tuple[str, float, bytes] | Due) -> tuple[bytes, int | str, bytes]:
    """A task as `schedule.lua` takes it. Raises ValueError for one that cannot be stored."""
    task_id, at_ms, payload = task
    check_size(payload)
    if isinstance(task, Due):
        return checked_id(task_id), f"+{checked_delay(at_ms)}", payload
    if not 0 <= at_ms <= MAX_DUE_AT_MS:  # false for NaN and infinity too
        raise ValueError(f"due_at_ms is from 0 to 2**53 - 1, not {at_ms}")
    return checked_id(task_id), math.ceil(at_ms), payload


def check_size(payload: bytes) -> None:
    """Raises ValueError for a payload that no claim could bring."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a payload has up to 16 MiB, not {len(payload):,} bytes")


def checked_due(due: Due) -> Due:
    """A row of a sweep that can be scheduled. Raises TypeError or ValueError for any other."""
    if not isinstance(due.id, str):
        raise TypeError(f"a task id is text, not {reprlib.repr(due.id)}")
    # The client would refuse to send it, which would be taken for an outage of Redis.
    if not isinstance(due.payload, bytes):
        raise TypeError(f"a payload is bytes, not {reprlib.repr(due.payload)}")
    check_size(due.payload)
    checked_id(due.id)
    # Databases may return Decimal, which cannot be added to the floats of the clock.
    delay_ms = checked_delay(float(due.delay_ms))
    return due if type(due.delay_ms) is float else Due(due.id, delay_ms, due.payload)


def checked_id(task_id: str) -> bytes:
    """An id that can be stored, for a script. Raises ValueError for any other."""
    if not task_id:  # scripts remove the empty id where they need a write that changes nothing
        raise ValueError("a task id is not empty")
    return id_to_bytes(task_id)


def ids_to_bytes(ids: Iterable[str]) -> list[bytes]:
    """Task ids for a script. Raises TypeError for a single id, whose letters would be taken for ids."""
    if isinstance(ids, str):
        raise TypeError(f"pass a list of task ids, not {ids!r}")
    return [id_to_bytes(task_id) for task_id in ids]


def id_to_bytes(task_id: str) -> bytes:
    return task_id.encode(errors="surrogateescape")


def id_to_text(task_id: bytes) -> str:
    """Accepts any bytes, because other programs may have written the id."""
    return task_id.decode(errors="surrogateescape")
