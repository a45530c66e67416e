"""The ids of records: as their tasks have them, and as a list in SQL."""

import re
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect


def id_type(column: sa.Column[Any]) -> tuple[sa.types.TypeEngine[Any], Callable[[str], Any]]:
    """The type of the ids in a list, and a function that parses a task id or raises ValueError.

    A record has exactly one task id, so another spelling of the same id is refused.
    """
    kind = column.type
    if isinstance(kind, sa.Uuid):
        return postgresql.UUID(as_uuid=False), _uuid if kind.as_uuid else _uuid_text
    if isinstance(kind, sa.Integer):
        return sa.BigInteger(), _int64
    # A CHAR pads what it stores.
    if isinstance(kind, sa.String) and not isinstance(kind, sa.Enum | sa.CHAR):
        return sa.Text(), _plain_text
    raise TypeError(f"{column} must be text, an integer or a UUID, not {kind!r}")


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _uuid_text(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError("its id is not a UUID in its usual form")
    return text


def _uuid(text: str) -> UUID:
    return UUID(_uuid_text(text))


def _int64(text: str) -> int:
    number = int(text)
    if str(number) != text or not -(2**63) <= number < 2**63:
        raise ValueError("its id is not a 64-bit integer in its usual form")
    return number


def _plain_text(text: str) -> str:
    text.encode()  # raises for surrogates, which stand for bytes that are not UTF-8
    if "\0" in text:
        raise ValueError("its id contains NUL")
    return text


class IdArray(sa.types.TypeDecorator[Sequence[Any]]):
    """An array that is sent as text, because drivers check the items of an array one at a time."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, item: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def process_bind_param(self, value: Sequence[Any] | None, _dialect: Dialect) -> str:
        items = [str(each) for each in value or ()]
        if isinstance(self.item, sa.Text):
            items = [f'"{each.translate(_ESCAPED)}"' for each in items]
        return f"{{{','.join(items)}}}"


_ESCAPED = str.maketrans({'"': r"\"", "\\": r"\\"})
