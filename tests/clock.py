"""How strictly a promise about time is held.

A machine that is busy with something else breaks such promises, and that says nothing about the
code. ``make faults`` (``STRICT=1``) holds each promise to its own figure, on a machine with
nothing else to do. Everywhere else the bound is five times as much, for the same path through the
code. Code that does not work at all fails there as well. What would stand in for it late, such as
the look-ahead after 30 s, comes later than five times the 3 s that a sweep has; but a lease of
10 s does not, so that only the strict figure tells a sweep from the end of such a lease.

Outside of ``tests/faults`` such a test is marked ``clock``, and ``make faults`` runs it too.
"""

import os

STRICT = os.environ.get("STRICT") == "1"


def bound(figure: float) -> float:
    """The figure that was promised, in any unit, or five times as much on a busy machine."""
    return figure if STRICT else 5 * figure
