"""What the service adds to a trace: nothing. With OpenTelemetry, `orders.tracing` has more to add."""

from collections.abc import Callable, Mapping, Sequence

from orders.domain import Answer, Message
from orders.repository import Cancelled

#: Sends a message with these headers as well.
Post = Callable[[Mapping[str, str]], Answer]


class Traces:
    """No traces."""

    #: Whether there are any.
    on = False

    def cancelled(self, cancelled: Sequence[Cancelled], began_ns: int) -> None:
        """These orders were cancelled by a call that began then, in ns since the epoch. Does not raise."""

    def send(self, message: Message, post: Post) -> Answer:  # noqa: ARG002  with traces it is read
        """Send a webhook message. Raises what ``post`` raises."""
        return post({})


NO_TRACES = Traces()
