from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.site import Site

Build = Callable[..., Site]


@pytest.fixture
def build(tmp_path: Path, database_url: str) -> Iterator[Build]:
    """Makes a site with the settings it is given, on a database of either kind."""
    sites: list[Site] = []

    def make(**settings: str) -> Site:
        sites.append(Site(tmp_path, database_url, settings))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
