"""Ids of rows: UUIDs, which Python has as text."""

import re

from uuid_utils import uuid7

UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """A UUIDv7: unguessable, and in the order of creation, which is kind to an index."""
    return str(uuid7())


def is_uuid(text: str) -> bool:
    """Whether this is a UUID in the form in which ids are written."""
    return UUID.fullmatch(text) is not None
