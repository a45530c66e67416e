"""A shop whose statements wait for as long as the search has them wait, on the busiest machine."""

from collections.abc import Iterator

import pytest

from tests.conftest import Shop, opened

PATIENT = {"statement_timeout_seconds": 60, "lock_timeout_seconds": 60}


@pytest.fixture
def shop(migrated_url: str) -> Iterator[Shop]:
    with opened(migrated_url, **PATIENT) as made:
        yield made
