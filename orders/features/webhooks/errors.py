"""Refusals of webhooks."""

from orders.errors import Conflict, NotFound


class WebhookNotFound(NotFound):
    """There is no such webhook subscription."""


class DeliveryNotFound(NotFound):
    """There is no such webhook delivery."""


class TooManyWebhooks(Conflict):
    """This client has the maximum number of webhook subscriptions."""
