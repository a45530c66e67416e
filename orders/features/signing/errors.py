"""Refusals of signed messages: of their signatures, and of where they are to go."""

from orders.errors import Invalid, NotAuthenticated


class SignatureInvalid(NotAuthenticated):
    """The webhook's signature is missing, wrong or too old."""

    challenge = 'Webhook-Signature realm="orders"'


class WebhookUrlNotAllowed(Invalid):
    """Nothing may be sent to this URL."""
