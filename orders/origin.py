"""Where an order came from: its request's id and trace, as one text that stays with the order in SQL.

So what happens to the order half an hour later can be found beside the request that placed it, and the
task in Redis is no bigger for it.
"""

from typing import NamedTuple


class Origin(NamedTuple):
    """A request: its id, and with tracing its span as W3C's Trace Context writes it."""

    request_id: str = ""
    #: version-trace-span-flags; "" without tracing.
    traceparent: str = ""

    @classmethod
    def parse(cls, text: str | None) -> "Origin":
        """What `str` made; an empty one for an order of a version that noted none."""
        request_id, _, traceparent = (text or "").partition(" ")
        return cls(request_id, traceparent)

    def __str__(self) -> str:
        return f"{self.request_id} {self.traceparent}".rstrip()

    def fields(self) -> dict[str, str]:
        """What a line in the log says of it."""
        said = {"request_id": self.request_id, "trace_id": self.traceparent[3:35]}
        return {name: value for name, value in said.items() if value}
