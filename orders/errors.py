"""What the order service refuses, as one tree, to which features add. An exception's docstring is its message.

The first level says of which kind a refusal is; `orders.http.problems` has a status for each.
"""

import re
from typing import Any, ClassVar

from worker import Unavailable


class OrderError(Exception):
    """The order service could not do what was asked."""

    #: Stable, for programs: the class's name in snake case.
    code: ClassVar[str] = "order_error"
    #: How many seconds to wait before trying again; None where that is no use.
    retry_after: ClassVar[int | None] = None
    #: How to authenticate: the value of WWW-Authenticate.
    challenge: ClassVar[str] = ""

    def __init_subclass__(cls, *, retry_after: int | None = None) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.retry_after = retry_after or cls.retry_after

    def __init__(self, detail: str = "", **facts: Any) -> None:
        #: What a program may want to know besides the code.
        self.facts = facts
        Exception.__init__(self, f"{(self.__doc__ or '').strip()} {detail}".strip())


class NotAuthenticated(OrderError):
    """It is not known who asks."""


class Unauthorized(NotAuthenticated):
    """Send an API key as Authorization: Bearer KEY. It is missing, malformed, unknown, expired or revoked."""

    challenge = 'Bearer realm="orders"'


class Forbidden(OrderError):
    """This key may not do that."""


class NotFound(OrderError):
    """There is no such thing."""


class OrderNotFound(NotFound):
    """There is no such order."""


class SkuNotFound(NotFound):
    """There is no such SKU."""


class PaymentNotFound(NotFound):
    """There is no such payment."""


class ClientNotFound(NotFound):
    """There is no client of that name."""


class KeyNotFound(NotFound):
    """There is no such key."""


class Conflict(OrderError):
    """It contradicts the present state."""


class OutOfStock(Conflict):
    """There is too little stock."""


class StockReserved(Conflict):
    """That would leave less than unpaid orders reserve."""


class AlreadyPaid(Conflict):
    """The order is paid."""


class OrderCancelled(Conflict):
    """The order is cancelled."""


class KeyInFlight(Conflict, retry_after=1):
    """A request with this Idempotency-Key is still being processed."""


class ReferenceReused(Conflict):
    """This reference was already used for a different order, amount, currency or refund."""


class AlreadyRefunded(Conflict):
    """All of this payment was already refunded, with other references."""


class RefundTooLarge(Conflict):
    """That is more than is left of this payment."""


class WrongCurrency(Conflict):
    """The payment is in another currency."""


class Invalid(OrderError):
    """It is well-formed, but cannot be done."""


class UnknownSku(Invalid):
    """An item's SKU is not sold here."""


class MixedCurrencies(Invalid):
    """All items of an order must have the same currency."""


class TotalTooLarge(Invalid):
    """The order's total is too large."""


class TimeoutOutOfRange(Invalid):
    """The timeout is out of range."""


class StockTooLarge(Invalid):
    """The stock is too large."""


class KeyReused(Invalid):
    """This Idempotency-Key was already used for a different request."""


class TooMuch(OrderError):
    """It is more than one client may have."""


class TooManyRequests(TooMuch, retry_after=1):
    """Too many requests."""


class NotAvailable(OrderError, retry_after=2):
    """What it needs is busy, or does not answer."""


class ServerBusy(NotAvailable, retry_after=1):
    """Too many requests are being received slowly. Nothing was changed; try again."""


class StorageUnavailable(NotAvailable, Unavailable):
    """The database does not answer."""


class RowLocked(StorageUnavailable):
    """A row stays locked by another transaction."""


class StorageReadOnly(StorageUnavailable):
    """The database is read-only: a standby, or a failover in progress."""


class SchemaOutdated(StorageUnavailable):
    """The database does not have this code's schema."""


class StorageUnfit(StorageUnavailable):
    """The database is not set up as the service needs it."""


class PreconditionRequired(OrderError):
    """Send If-Match with the ETag that you read, so that no other change is overwritten."""


class PreconditionFailed(OrderError):
    """If-Match or If-None-Match does not match the current version: read it again."""


class SettingsInvalid(OrderError, ValueError):
    """The settings in the environment are invalid."""
