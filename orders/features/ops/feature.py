"""The operators' page."""

from orders.feature import Feature
from orders.features.ops.routes import Tools, install

FEATURE = Feature(name="ops", wire=lambda services: [Tools(services)], install=install)
