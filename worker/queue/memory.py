"""What a worker remembers of a queue."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Memory:
    """Of one queue, whichever connection is used. Times are on the monotonic clock, in seconds."""

    #: The claimer's id.
    claimer: str
    #: Whether the queue was paused when a claim or a sweep last asked; kept while Redis does not answer.
    paused: bool = False
    #: The token of a claim that got no reply: what it leased is put back before the next.
    unanswered: str | None = None
    #: Since when Redis has not answered, if a call failed after the last claim.
    silent_since: float | None = None
    #: Until when leases that have ended are left to their workers.
    spares_until: float = -math.inf
    #: Whether the next claim takes what was due last, if there is a backlog: every second one after which more is due.
    takes_newest: bool = False
    #: The server's clock minus the monotonic clock, ms, so that a claim can say when it expects to run.
    server_ahead_ms: float | None = None
