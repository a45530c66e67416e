"""Webhooks of payment providers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    StringConstraints,
    Tag,
)

from orders.db.ids import UUID
from orders.features.providers.attempts.domain import MAX_SECONDS
from orders.features.providers.attempts.schemas import Seconds
from orders.features.providers.domain import MessageStatus
from orders.http.schemas.orders import ClientName
from orders.http.schemas.paging import TimeQuery, page_of
from orders.http.schemas.payments import REFUND_AMOUNT, REFUND_CURRENCY
from orders.http.schemas.types import (
    Amount,
    Id,
    Moment,
    Out,
    PaidAt,
    Provider,
    ProviderOut,
    Reference,
    Shown,
)

PAYMENT, OTHER = "payment.succeeded", "other"
PENDING, FAILED = "payment.pending", "payment.failed"
#: By the type of a message, the kind of the entry that it reports.
ENTRIES = {"refund.succeeded": "refund", "refund.failed": "failed"} | {
    f"dispute.{kind}": kind for kind in ("opened", "won", "lost")
}


Kind = Field(description="What happened.")


class Report(BaseModel):
    """JSON's own types only. Unlike in requests of clients, unknown fields are ignored.

    A provider adds fields at will. Refusing them would lose what it reports.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


#: Read in any case, and with spaces around it, which cannot mean anything else.
TRIMMED = StringConstraints(strip_whitespace=True)
ANY_UUID = UUID.pattern.replace("a-f", "a-fA-F")
AnyReference = Annotated[Reference, TRIMMED]
AnyCurrency = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z]{3}$", max_length=3, strip_whitespace=True, to_upper=True),
    Field(description="ISO 4217, in lower or upper case.", examples=["EUR"]),
]


OrderId = Annotated[
    str,
    StringConstraints(pattern=f"^{ANY_UUID}$", strip_whitespace=True, to_lower=True),
    Field(
        description="The id of the order that it is for.",
        examples=["01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f"],
        json_schema_extra={"format": "uuid"},
    ),
]


class Taken(Report):
    """Money that the provider took for an order."""

    order_id: OrderId
    amount_minor: Amount
    currency: AnyCurrency
    paid_at: PaidAt | None = None


class PaymentReport(Taken):
    """Money that the provider took, and its name for it."""

    reference: AnyReference


class AttemptReport(Report):
    """A payment for an order that the provider has not taken, or not yet."""

    order_id: OrderId
    reference: AnyReference


class PendingReport(AttemptReport):
    """A payment that is under way."""

    seconds: Seconds = MAX_SECONDS


class EntryReport(Report):
    """Money that the provider sent back, or that its payer claims back."""

    order_id: Annotated[OrderId | None, Field(description="The payment's order.")] = None
    payment_reference: AnyReference = Field(description="The provider's own name for the payment.")
    reference: AnyReference = Field(
        description="The provider's own name for the refund or dispute.", examples=["re-1"]
    )
    amount_minor: Annotated[Amount | None, REFUND_AMOUNT] = None
    currency: Annotated[AnyCurrency | None, REFUND_CURRENCY] = None


class PaymentSucceeded(Report):
    """A payment was taken."""

    type: Annotated[Literal["payment.succeeded"], Kind]
    data: PaymentReport


class PaymentPending(Report):
    """Somebody is paying."""

    type: Annotated[Literal["payment.pending"], Kind]
    data: PendingReport


class PaymentFailed(Report):
    """A payment will not be taken."""

    type: Annotated[Literal["payment.failed"], Kind]
    data: AttemptReport


class EntryReported(Report):
    """All or some of a payment was sent back, or was not after all; or its payer disputes it."""

    type: Annotated[
        Literal[
            "refund.succeeded", "refund.failed", "dispute.opened", "dispute.won", "dispute.lost"
        ],
        Kind,
    ]
    data: EntryReport


class OtherMessage(Report):
    """A message of any other type, which is acknowledged and ignored."""

    type: Annotated[
        str,
        StringConstraints(min_length=1, max_length=100, pattern=r"^[!-~]+$"),
        Field(
            description="Any other.",
            examples=["payment.created"],
            json_schema_extra={"not": {"enum": [PAYMENT, PENDING, FAILED, *ENTRIES]}},
        ),
    ]


def _names_one(data: Any) -> bool:
    """Whether it says which payment is meant. One that does not moves no money either way."""
    return isinstance(data, dict) and {"order_id", "reference"} <= data.keys()


def _tag(message: Any) -> str:
    kind = message.get("type") if isinstance(message, dict) else None
    if kind == PAYMENT or (kind in (PENDING, FAILED) and _names_one(message.get("data"))):
        return str(kind)
    return "entry" if isinstance(kind, str) and kind in ENTRIES else OTHER


class ReportIn(
    RootModel[
        Annotated[
            Annotated[PaymentSucceeded, Tag(PAYMENT)]
            | Annotated[PaymentPending, Tag(PENDING)]
            | Annotated[PaymentFailed, Tag(FAILED)]
            | Annotated[EntryReported, Tag("entry")]
            | Annotated[OtherMessage, Tag(OTHER)],
            Discriminator(_tag),
        ]
    ]
):
    """What a provider reports."""


class PaidReply(PaymentReport):
    """An attempt that was to be closed has been paid."""

    outcome: Literal["paid"]
    provider: Annotated[Provider, TRIMMED]


class OtherReply(Report):
    """Nobody can pay any more, or that cannot be told yet."""

    outcome: Literal["closed", "unknown"]
    provider: Annotated[Provider, TRIMMED] | None = None
    order_id: OrderId | None = None
    reference: AnyReference | None = None


class CloseReply(RootModel[Annotated[PaidReply | OtherReply, Field(discriminator="outcome")]]):
    """What a provider answers when it is asked to close an attempt."""


class OutcomeOut(Out):
    """What became of a message, and which payment it was about. It need not be sent again."""

    outcome: Literal[
        "applied",
        "refund_due",
        "refunded",
        "disputed",
        "pending",
        "failed",
        "replayed",
        "ignored",
        "waiting",
    ] = Field(
        description="Replayed: it was recorded before. Waiting: it is kept for a person to look at, "
        "because it cannot be recorded."
    )
    payment_id: Id | None = Field(description="The payment's id; null without one.")


class MessagesQuery(TimeQuery):
    """Which of the messages that providers sent."""

    list_name: ClassVar[str] = "messages"

    status: MessageStatus = Field(
        default=MessageStatus.WAITING,
        description="Only those with this status.",
        examples=["waiting"],
    )


class ProviderMessageOut(Out):
    """A signed message, as it came."""

    id: Id
    client: Annotated[str, Shown(ClientName)]
    provider: ProviderOut
    webhook_id: str = Field(
        description="Its header of this name.",
        examples=["msg-1"],
        json_schema_extra={"maxLength": 255},
    )
    body: Annotated[
        Annotated[str, Field(json_schema_extra={"maxLength": 16_384})] | None,
        BeforeValidator(lambda body: body and body.decode(errors="replace")),
    ] = Field(
        description="Bytes that are not UTF-8 are replaced. Null once it is settled.",
        examples=['{"type": "payment.paid"}'],
    )
    created_at: Moment = Field(description="When it was first received.")
    status: MessageStatus
    note: str = Field(
        description="What became of it, or why it waits.",
        examples=["unknown type payment.paid"],
        json_schema_extra={"maxLength": 500},
    )


ProviderMessagesOut = page_of(
    "ProviderMessagesOut", ProviderMessageOut, "A page of messages, oldest first."
)
