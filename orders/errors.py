"""Everything the order service refuses, as one tree. An exception's docstring is its message."""

import re
from typing import Any, ClassVar


class OrderError(Exception):
    """The order service could not do what was asked."""

    #: Stable, for programs: the class's name in snake case.
    code: ClassVar[str] = "order_error"

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, detail: str = "", **facts: Any) -> None:
        #: What a program may want to know besides the code.
        self.facts = facts
        super().__init__(f"{(self.__doc__ or '').strip()} {detail}".strip())


class OrderNotFound(OrderError):
    """There is no such order."""


class SkuNotFound(OrderError):
    """There is no such SKU."""


class UnknownOrder(OrderError):
    """You have no order of this id to replace."""


class UnknownSku(OrderError):
    """An item's SKU is not sold here."""


class OutOfStock(OrderError):
    """There is too little stock."""


class MixedCurrencies(OrderError):
    """All items of an order must have the same currency."""


class TotalTooLarge(OrderError):
    """The order's total is too large."""


class TimeoutOutOfRange(OrderError):
    """The timeout is out of range."""


class StockBusy(OrderError):
    """Too many orders are waiting for this stock. Nothing was changed; try again."""


class ServerBusy(OrderError):
    """Too many requests are being received slowly. Nothing was changed; try again."""


class TooManyRequests(OrderError):
    """Too many requests."""


class AlreadyPaid(OrderError):
    """The order is paid."""


class OrderCancelled(OrderError):
    """The order is cancelled."""


class AttemptTooLate(OrderError):
    """Payments for this order have been under way for as long as they may beyond its deadline."""


class TooManyAttempts(OrderError):
    """Too many payments for this order are under way."""


class GatewayUnavailable(OrderError):
    """The payment provider does not answer."""


class TooManyUnpaidOrders(OrderError):
    """You have too many unpaid orders."""


class TooManyHeldPieces(OrderError):
    """Your unpaid orders hold too many pieces."""


class KeyReused(OrderError):
    """This Idempotency-Key was already used for a different request."""


class KeyInFlight(OrderError):
    """A request with this Idempotency-Key is still being processed."""


class ReferenceReused(OrderError):
    """This reference was already used for a different order, amount, currency or refund."""


class UnknownProvider(OrderError):
    """This is not one of your registered payment providers."""


class PaymentNotFound(OrderError):
    """There is no such payment."""


class AlreadyRefunded(OrderError):
    """All of this payment was already refunded, with other references."""


class RefundTooLarge(OrderError):
    """That is more than is left of this payment."""


class WrongCurrency(OrderError):
    """The payment is in another currency."""


class StockReserved(OrderError):
    """That would leave less than unpaid orders hold."""


class StockTooLarge(OrderError):
    """The stock is too large."""


class PreconditionRequired(OrderError):
    """Send If-Match with the ETag that you read, so that no other change is overwritten."""


class PreconditionFailed(OrderError):
    """If-Match or If-None-Match does not match the current version: read it again."""


class SignatureInvalid(OrderError):
    """The webhook's signature is missing, wrong or too old."""


class WebhookNotFound(OrderError):
    """There is no such webhook subscription."""


class DeliveryNotFound(OrderError):
    """There is no such webhook delivery."""


class FreezeNotFound(OrderError):
    """There is no such freeze."""


class FreezeEnded(OrderError):
    """This freeze has ended: open another one."""


class FreezeOutOfRange(OrderError):
    """A freeze lasts up to a day; it can be prolonged."""


class DeadLetterNotFound(OrderError):
    """There is no such dead letter."""


class WebhookUrlNotAllowed(OrderError):
    """Webhooks are not sent to this URL."""


class TooManyWebhooks(OrderError):
    """This client has the maximum number of webhook subscriptions."""


class KeyNotFound(OrderError):
    """There is no such key."""


class ClientNotFound(OrderError):
    """There is no client of that name."""


class EndpointNotFound(OrderError):
    """There is no such endpoint of a provider."""


class MessageNotFound(OrderError):
    """There is no such message of a provider."""


class Forbidden(OrderError):
    """This key may not do that."""


class LoginRequired(OrderError):
    """Log in with an API key that has the scope ops."""


class NotFromThisPage(OrderError):
    """The request did not come from the operators' page."""


class QueueUnavailable(OrderError):
    """Redis does not answer."""


class DoctorBusy(OrderError):
    """An examination is under way."""


class ArchiveUnavailable(OrderError):
    """The archive cannot be written, so no order is deleted."""


class InboxFull(OrderError):
    """Too many messages of providers wait for a person, so no order is deleted."""


class SettingsInvalid(OrderError, ValueError):
    """The settings in the environment are invalid."""


class StorageUnavailable(OrderError):
    """The database does not answer."""


class RowLocked(StorageUnavailable):
    """A row stays locked by another transaction."""


#: To a client it makes no difference.
RowLocked.code = StorageUnavailable.code


class StorageReadOnly(StorageUnavailable):
    """The database is read-only: a standby, or a failover in progress."""


class SchemaOutdated(StorageUnavailable):
    """The database does not have this code's schema."""
