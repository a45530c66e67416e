"""Where an order came from: its request's id and trace, stored with the order as one text.

So what happens to the order half an hour later can be found by the request that placed it, and the
task in Redis stays as small as it was.
"""

from typing import NamedTuple


class Origin(NamedTuple):
    """A request: its id and, with tracing, its span as in W3C Trace Context."""

    request_id: str = ""
    #: version-trace-span-flags; "" without tracing.
    traceparent: str = ""

    @classmethod
    def parse(cls, text: str | None) -> "Origin":
        """Reads what `str` wrote. Empty for an order that no request placed."""
        request_id, _, traceparent = (text or "").partition(" ")
        return cls(request_id, traceparent)

    def __str__(self) -> str:
        return f"{self.request_id} {self.traceparent}".rstrip()

    def fields(self) -> dict[str, str]:
        """Its fields in a log line."""
        values = {"request_id": self.request_id, "trace_id": self.traceparent[3:35]}
        return {name: value for name, value in values.items() if value}
