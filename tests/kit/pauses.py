"""How long a fault lasts."""

import time


def last(seconds: float) -> None:
    """Let a fault last. Its duration is the fault itself, so there is nothing to wait for."""
    time.sleep(seconds)
