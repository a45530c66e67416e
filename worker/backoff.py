"""How long to wait before the next attempt. Pure: randomness is an argument."""

from collections.abc import Callable
from dataclasses import dataclass
from random import random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter over the upper half.

    Attempt *n* waits between half and all of ``base * 2**(n - 1)`` seconds, at most
    ``cap``. Jitter keeps tasks that failed together from coming back together; keeping
    half of the delay fixed ("equal jitter", Brooker, *Exponential Backoff And Jitter*,
    AWS Architecture Blog, 2015) keeps a retry from following its failure at once.
    """

    base_seconds: float = 1.0
    cap_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.base_seconds <= self.cap_seconds:
            detail = f"{self.base_seconds} and {self.cap_seconds}"
            raise ValueError(f"backoff needs 0 < base_seconds <= cap_seconds, got {detail}")

    def delay_ms(self, attempt: int, chance: Callable[[], float] = random) -> int:
        """Milliseconds to wait after failed attempt number ``attempt``, counted from 1."""
        doublings = min(attempt - 1, 62)  # a float cannot hold every power of two
        ceiling = min(self.cap_seconds, self.base_seconds * 2.0**doublings)
        return max(1, round(1000 * ceiling * (0.5 + chance() / 2)))
