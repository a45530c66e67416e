"""What the doctor finds, for tests of the whole."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from orders.features.doctor.doctor import Doctor
from worker import Finding


def findings(engine: sa.Engine, **more: Any) -> Iterable[Finding]:
    return Doctor(engine, **more).examine()
