"""Ids of rows: UUIDs, which Python has as text."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from uuid_utils import uuid7

EPOCH = datetime.fromtimestamp(0, UTC)
MILLISECOND = timedelta(milliseconds=1)
UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """A UUIDv7: unguessable, and in the order of creation, which is kind to an index."""
    return str(uuid7())


def random_part() -> str:
    """What follows the time in a UUIDv7 that the database makes of its own clock, in hex."""
    return new_id().replace("-", "")[12:]


def first_id_after(moment: datetime) -> str:
    """The least UUIDv7 of a time after this moment, in whole milliseconds."""
    return _first_id((moment - EPOCH) // MILLISECOND + 1)


def first_id_from(moment: datetime) -> str:
    """The least UUIDv7 of this moment or a later one."""
    return _first_id(-((EPOCH - moment) // MILLISECOND))


def _first_id(ms: int) -> str:
    digits = f"{max(ms, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}-0000-0000-000000000000"


def array_of(ids: Iterable[str]) -> str:
    """Many ids in one parameter, for PostgreSQL to cast: the driver would check each for characters that need quotes."""
    return f"{{{','.join(ids)}}}"


def is_uuid(text: str) -> bool:
    """Whether this is a UUID in the form in which ids are written."""
    return UUID.fullmatch(text) is not None
