"""All events of a client's orders, over HTTP."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from orders.features.feed.service import Feed
from orders.http.auth import caller, page, services
from orders.http.routing import Routes, answers
from orders.http.schemas.orders import EventOut
from orders.http.schemas.paging import NumberQuery, like, page_of
from orders.http.schemas.types import Id, Sequence

feed = Routes("feed", "Events", "Everything that happens to your orders, in one sequence.")


class FeedQuery(NumberQuery):
    """Which of a client's events."""

    list_name: ClassVar[str] = "event"
    sorted_by: ClassVar[tuple[str, ...]] = ("sequence",)

    after_sequence: Annotated[
        int,
        Field(
            ge=0,
            le=10**18 - 1,
            description="Only those after this one. To continue, send the sequence of the last event that you read from this list.",
            examples=[4711],
        ),
        like("[0-9]{1,18}", "a whole number"),
    ] = 0

    @property
    def after_id(self) -> int:
        """Where the page before ended, or the caller. Raises BadRequest."""
        return max(self.after_sequence, super().after_id or 0)


class FeedEventOut(EventOut):
    """Something that happened to one of your orders."""

    sequence: Sequence
    order_id: Id = Field(description="The id of the order.")
    webhook_ids: list[Id] = Field(
        description="The webhook-id of each message about it, as long as deliveries are kept.",
        json_schema_extra={"maxItems": 100},
    )


FeedOut = page_of("FeedOut", FeedEventOut, "A page of events, in their sequence.")


@feed.get("/events", returns=FeedOut, scopes=["orders"])
@answers()
def list_all_events(query: FeedQuery) -> Any:
    """All events of your orders.

    In the order of `sequence`, and complete: no event is ever added before one that was listed. If you keep
    the `sequence` of the last event that you read from this list, you miss none, even if webhooks were lost.
    """
    found = services()[Feed].events(caller(), after_id=query.after_id, page_size=query.limit)
    return page(found, query)
