"""What the engine takes from outside, which tests replace, and what it remembers of a queue."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis

from .connection import connect

#: The monotonic clock, in seconds.
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Environment:
    """Connections, time and chance."""

    connect: Callable[..., redis.Redis] = connect
    clock: Clock = time.monotonic
    #: So many random bytes, in hex.
    token: Callable[[int], str] = secrets.token_hex


REAL = Environment()


@dataclass(slots=True)
class Memory:
    """What a worker remembers of a queue, whichever connection it uses. Times are on the monotonic clock, in seconds."""

    #: The claimer's id.
    claimer: str
    #: Whether the queue was paused when a claim or a sweep last asked; kept while Redis does not answer.
    paused: bool = False
    #: Tokens of claims that got no reply: no worker holds the tasks that they may have leased.
    lost_claims: dict[str, None] = field(default_factory=dict)
    #: Since when Redis has not answered, if a call failed after the last claim.
    silent_since: float | None = None
    #: Whether the last claim that was answered waits as it is told.
    shares_watch: bool = False
    #: Whether the next claim takes what was due last, if there is a backlog: every second one that finds tasks.
    takes_newest: bool = False
    #: The server's clock minus the monotonic clock, ms, so that a claim can say when it expects to run.
    server_ahead_ms: float | None = None
