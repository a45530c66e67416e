"""Retention: how long orders are kept, and what of a person is exported and erased on request."""

from collections.abc import Iterator
from functools import partial

from orders.feature import Feature
from orders.features.retention.commands import erase, export
from orders.features.retention.flow import RETENTION_QUEUE, retention_flow
from orders.features.retention.service import Retention
from orders.features.retention.settings import RetentionSettings
from orders.wiring import Services


def wire(services: Services) -> Iterator[object]:
    describe = partial(services.orders.describe, versions=None)
    yield Retention(services.engine, describe, services.settings[RetentionSettings].retention_days)


FEATURE = Feature(
    name="retention",
    settings=(RetentionSettings,),
    queues=(RETENTION_QUEUE,),
    wire=wire,
    flows=lambda services: [retention_flow(services)],
    commands=(erase, export),
)
