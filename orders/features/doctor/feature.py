"""The doctor: what the service knows about its own health."""

from collections.abc import Iterator

from orders.db.database import session_settings
from orders.feature import Feature
from orders.features.doctor.doctor import Doctor
from orders.wiring import Services
from worker import Finding


def examine(services: Services) -> Iterator[Finding]:
    return Doctor(services.engine, session=session_settings(services.settings)).examine()


FEATURE = Feature(name="doctor", examine=examine)
