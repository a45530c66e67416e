from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.valkey import Valkey
from tests.faults.site import Site

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


Build = Callable[..., Site]


@pytest.fixture
def build(tmp_path: Path, migrated_url: str) -> Iterator[Build]:
    """Makes a site with the settings it is given, on a database of either kind."""
    sites: list[Site] = []

    def make(*, valkey: Valkey | None = None, **settings: str) -> Site:
        sites.append(Site(tmp_path, migrated_url, settings, valkey=valkey))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
