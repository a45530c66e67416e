"""The feed: a client's events in the order in which they are committed, for whoever polls."""

from collections.abc import Iterator

from orders.feature import Feature
from orders.features.feed import tables
from orders.features.feed.routes import feed
from orders.features.feed.service import Feed
from orders.wiring import Services


def wire(services: Services) -> Iterator[object]:
    yield Feed(services.engine)


FEATURE = Feature(name="feed", tables=tables, wire=wire, routes=(feed,))
