"""What the service adds to traces: nothing. `orders.watch.opentelemetry` adds spans, with OpenTelemetry."""

from collections.abc import Callable, Mapping, Sequence

from orders.order.domain import CancelledOrder
from orders.webhooks.domain import Answer, Message

#: Sends a message with these headers as well.
Post = Callable[[Mapping[str, str]], Answer]


class Traces:
    """No traces."""

    #: Whether there are any.
    on = False

    def cancelled(self, cancelled: Sequence[CancelledOrder], began_ns: int) -> None:
        """Add these orders, cancelled by a call that began at ``began_ns`` since the epoch. Does not raise."""

    def send(self, message: Message, post: Post) -> Answer:  # noqa: ARG002  for subclasses
        """Send a webhook message. Raises what ``post`` raises."""
        return post({})


NO_TRACES = Traces()
