"""What exceeds the limits."""

from orders.errors import TooMuch


class TooManyUnpaidOrders(TooMuch, retry_after=10):
    """You have too many unpaid orders."""


class TooManyHeldPieces(TooMuch, retry_after=10):
    """Your unpaid orders reserve too many pieces."""
