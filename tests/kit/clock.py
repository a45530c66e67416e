"""How strictly time limits are enforced.

A machine that is busy with something else exceeds them, which says nothing about the code.
``make faults`` (``STRICT=1``) enforces each limit as stated, on a machine with nothing else to do.
Everywhere else a wake-up may take a second, and every other limit is five times as long. Code that
does not work at all still fails there: a slower fallback, such as the look-ahead every 30 s, comes
later than five times the sweep's 3 s.
The end of a 10 s lease does not, so only the strict limit can tell it from a sweep.

But for those of faults, such a test is marked ``clock``, and ``make faults`` runs it too.
"""

import os

STRICT = os.environ.get("STRICT") == "1"


def bound(figure: float) -> float:
    """The figure that was promised, in any unit, or five times as much on a busy machine."""
    return figure if STRICT else 5 * figure


def bound_of_waking(ms: float) -> float:
    """How late a woken thread may be, in milliseconds. On a busy machine it waits longer for its turn.

    Only for tests that nothing but the wake-up can end: in others this would hide that it is missing.
    """
    return ms if STRICT else 1000
