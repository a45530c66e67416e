"""How strictly a promise about time is held.

A machine that is busy with something else breaks such promises, and that says nothing about the
code. ``make faults`` (``STRICT=1``) holds each promise to its own figure, on a machine with
nothing else to do. Everywhere else the bound is five times as much, for the same path through the
code. Code that does not work at all fails there as well: whatever would stand in for it, the
look-ahead after 30 s or a longer lease, comes later than that.

Outside of ``tests/faults`` such a test is marked ``clock``, and ``make faults`` runs it too.
"""

import os

STRICT = os.environ.get("STRICT") == "1"


def bound(figure: float) -> float:
    """The figure that was promised, in any unit, or five times as much on a busy machine."""
    return figure if STRICT else 5 * figure
