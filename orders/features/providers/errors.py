"""What providers and attempts to pay refuse, and what providers' gateways do wrong."""

from orders.errors import Conflict, Invalid, NotAvailable, NotFound, OrderError


class EndpointNotFound(NotFound):
    """There is no such endpoint of a provider."""


class MessageNotFound(NotFound):
    """There is no such message of a provider."""


class UnknownProvider(Invalid):
    """This is not one of your registered payment providers."""


class InboxFull(NotAvailable, retry_after=3600):
    """Too many messages of providers wait for a person."""


class AttemptTooLate(Conflict):
    """Payments for this order have been under way for as long as they may beyond its deadline."""


class TooManyAttempts(Conflict):
    """Too many payments for this order are under way."""


class GatewayUnavailable(OrderError):
    """The payment provider does not answer, refuses to close this attempt, or makes no sense."""
