"""docs/tour.md promises an afternoon: few enough lines to read, and a name for every other room."""

import re
from pathlib import Path

from devtools.processes import ROOT

PAGE = (ROOT / "docs" / "tour.md").read_text()
#: What somebody reads in an afternoon.
MOST_LINES = 3_500


def files_to_read(page: str) -> list[Path]:
    _, _, section = page.partition("\n## Read this\n")
    section, _, _ = section.partition("\n## ")
    return [ROOT / "docs" / target for target in re.findall(r"\]\((\S+)\)", section)]


def lines(files: list[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


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


def test_every_link_leads_to_a_file() -> None:
    targets = re.findall(r"\]\((\.\./[^)#]+|[\w-]+\.md)\)", PAGE)
    assert len(targets) > 20
    assert [target for target in targets if not (ROOT / "docs" / target).is_file()] == []


def test_what_decides_can_be_read_in_an_afternoon() -> None:
    files = files_to_read(PAGE)
    assert len(files) > 15
    assert lines(files) <= MOST_LINES


def test_a_file_too_many_in_the_afternoon_is_found() -> None:
    more = "".join(
        f"[`{name}`](../{name})\n"
        for name in ("orders/ops/routes.py", "orders/webhooks/repository.py", "worker/cli/dead.py")
    )
    longer = PAGE.replace("\n## The rooms", f"{more}\n## The rooms")
    assert lines(files_to_read(longer)) > MOST_LINES


def test_every_room_is_named() -> None:
    found = rooms() | {"worker/records"}  # a module or a package
    assert rooms_named(PAGE) == found
