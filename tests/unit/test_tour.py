"""docs/tour.md leads through every file of the service and the engine."""

import re

from devtools.processes import ROOT

PAGE = (ROOT / "docs" / "tour.md").read_text()


def named(page: str) -> set[str]:
    return {*re.findall(r"`((?:orders|worker)/[\w/]+\.\w+)`", page)}


def files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for package in ("orders", "worker")
        for pattern in ("*.py", "*.lua")
        for path in (ROOT / package).rglob(pattern)
    }


def test_the_tour_names_every_file_and_no_other() -> None:
    assert files() - named(PAGE) == set()
    assert named(PAGE) - files() == set()


def test_a_file_that_is_missing_from_the_tour_is_found() -> None:
    assert files() - named(PAGE.replace("`worker/runtime/lane.py`", "")) == {
        "worker/runtime/lane.py"
    }
