from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.valkey import Valkey
from tests.faults.site import Site

Build = Callable[..., Site]


@pytest.fixture
def build(tmp_path: Path, migrated_url: str) -> Iterator[Build]:
    """Makes a site with the settings it is given, on a migrated database without orders."""
    sites: list[Site] = []

    def make(*, valkey: Valkey | None = None, **settings: str) -> Site:
        sites.append(Site(tmp_path, migrated_url, settings, valkey=valkey))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
