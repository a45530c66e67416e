"""Ids of rows: UUIDs, which Python has as text."""

import re
from datetime import UTC, datetime, timedelta

from uuid_utils import uuid7

EPOCH = datetime.fromtimestamp(0, UTC)
UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """A UUIDv7: unguessable, and in the order of creation, which is kind to an index."""
    return str(uuid7())


def random_part() -> str:
    """What follows the time in a UUIDv7 that the database makes of its own clock, in hex."""
    return new_id().replace("-", "")[12:]


def first_id_after(moment: datetime) -> str:
    """The least UUIDv7 of a time after this moment, in whole milliseconds."""
    ms = (moment - EPOCH) // timedelta(milliseconds=1) + 1
    digits = f"{max(ms, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}-0000-0000-000000000000"


def is_uuid(text: str) -> bool:
    """Whether this is a UUID in the form in which ids are written."""
    return UUID.fullmatch(text) is not None
