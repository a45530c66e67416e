"""docs/tour.md has a name for every room."""

import re

from devtools.processes import ROOT

PAGE = (ROOT / "docs" / "tour.md").read_text()


def rooms_named(page: str) -> set[str]:
    """The first column of the table of rooms."""
    _, _, section = page.partition("\n## The rooms\n")
    return {*re.findall(r"^\| `([\w/]+)` \|", section, re.MULTILINE)}


def rooms() -> set[str]:
    """The folders of the service and the engine that contain code."""
    return {
        str(path.parent.relative_to(ROOT))
        for package in ("orders", "worker")
        for pattern in ("*.py", "*.lua")
        for path in (ROOT / package).rglob(pattern)
    }


def test_every_room_is_named() -> None:
    found = rooms() | {"worker/records"}  # a module or a package
    assert rooms_named(PAGE) == found
