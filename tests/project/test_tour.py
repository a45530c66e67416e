"""docs/tour.md has a name for every room."""

import re

from devtools.processes import ROOT
from orders.features import NAMES

PAGE = (ROOT / "docs" / "tour.md").read_text()
README = (ROOT / "README.md").read_text()


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
    found = {room for room in rooms() if not room.startswith("orders/features/")}
    assert rooms_named(PAGE) == found


def test_every_feature_is_named_and_has_a_page() -> None:
    links = re.findall(r"^\| \[(\w+)\]\(orders/features/(\w+)/README.md\) \|", README, re.MULTILINE)
    assert {*links} == {(name, name) for name in NAMES}
