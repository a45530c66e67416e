"""Reads the SQL statements of a room: in its folder ``sql/`` one file for each operation, and small ones in sections of
``queries.sql``.

A statement begins with comments: what it does, a line for each parameter, with its type, and what it returns::

    -- name: get_client_id                (in queries.sql; elsewhere the file's name)
    -- The client of a name.
    -- :name    text
    -- returns  id
    SELECT id FROM api_clients WHERE name = :name::text
"""

import re
from functools import cached_property
from importlib.resources import files
from typing import Any

import sqlalchemy as sa

#: A parameter; not a cast, which has two colons.
PARAMETER = re.compile(r"(?<![:\w]):([a-z]\w*)")
SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
COMMENT = re.compile(r"\s*--.*")


class Statement:
    """One statement, which is called with a connection and the values of its parameters."""

    def __init__(self, source: str) -> None:
        text = COMMENT.sub("", source).strip().removesuffix(";")
        #: In the order in which the driver takes them.
        self.parameters = tuple(dict.fromkeys(PARAMETER.findall(text)))
        self._names = frozenset(self.parameters)
        places = {name: f"${place}" for place, name in enumerate(self.parameters, 1)}
        self.source, self.text = source, PARAMETER.sub(lambda found: places[found[1]], text)

    def __call__(self, connection: sa.Connection, **values: Any) -> sa.CursorResult[Any]:
        """Raises TypeError for any parameter too few or too many."""
        if values.keys() != self._names:
            raise TypeError(f"the parameters are {self.parameters}, not {(*values,)}")
        given = tuple(map(values.__getitem__, self.parameters))
        return connection.exec_driver_sql(self.text, given)


class Room:
    """The statements of a package: ``Room(__package__).get_key(connection, id=...)``. They are read on first use."""

    def __init__(self, package: str) -> None:
        self._package = package

    @cached_property
    def statements(self) -> dict[str, Statement]:
        found: dict[str, str] = {}
        for file in (files(self._package) / "sql").iterdir():
            name, text = file.name.removesuffix(".sql"), file.read_text("utf-8")
            _, *sections = SECTION.split(text)
            found |= zip(sections[::2], sections[1::2], strict=True) if sections else {name: text}
        return {name: Statement(source) for name, source in found.items()}

    def __getattr__(self, name: str) -> Statement:
        try:
            return self.statements[name]
        except KeyError:
            raise AttributeError(f"{self._package}/sql has no {name}") from None
