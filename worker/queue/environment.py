"""What the engine takes from outside, which tests replace."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

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
