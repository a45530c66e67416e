"""What the tests of records share."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.kit.hall import made


@pytest.fixture
def engine(records_url: str) -> Iterator[sa.Engine]:
    """An engine as anybody makes it."""
    with made(records_url) as engine:
        yield engine
