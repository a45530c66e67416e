"""How long to wait before the next attempt. Pure: randomness is an argument.

A backoff is any callable from the number of failures, 1 or more, to seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import random

#: Seconds to wait after failure number n, counted from 1.
BackoffFunction = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter over the upper half.

    Failure *n* is followed by between half and all of ``base * 2**(n - 1)`` seconds, at most
    ``cap``. Jitter keeps tasks that failed together from coming back together; keeping
    half of the delay fixed ("equal jitter", Brooker, *Exponential Backoff And Jitter*,
    AWS Architecture Blog, 2015) keeps a retry from following its failure at once.
    """

    base_seconds: float = 1.0
    cap_seconds: float = 900.0

    def __post_init__(self) -> None:
        if not 0 < self.base_seconds <= self.cap_seconds:
            detail = f"{self.base_seconds} and {self.cap_seconds}"
            raise ValueError(f"backoff needs 0 < base_seconds <= cap_seconds, got {detail}")

    def __call__(self, failures: int, chance: Callable[[], float] = random) -> float:
        """Seconds to wait after failure number ``failures``, counted from 1."""
        doublings = min(failures - 1, 62)  # a float cannot hold every power of two
        ceiling = min(self.cap_seconds, self.base_seconds * 2.0**doublings)
        return max(0.001, ceiling * (0.5 + chance() / 2))


#: How long to wait before another look at a task whose row somebody has locked.
LOOK_AGAIN = Backoff(base_seconds=0.05, cap_seconds=1.0)


class Delays:
    """A backoff with the given delays in seconds; the last one repeats.

    ``Delays(15, 15, 30, 180, 600)`` waits 15 s after the first two failures, and 10 minutes after the
    fifth and every later one.
    """

    def __init__(self, *seconds: float) -> None:
        if not seconds or not all(0 <= each < float("inf") for each in seconds):
            raise ValueError(f"Delays needs one or more seconds, none negative, not {seconds}")
        self.seconds = seconds

    def __call__(self, failures: int) -> float:
        return self.seconds[min(failures, len(self.seconds)) - 1]

    def __repr__(self) -> str:
        return f"Delays({', '.join(map(str, self.seconds))})"
