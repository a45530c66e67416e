"""Calls what a flow wants to be called about once a second."""

from collections.abc import Callable

from ..errors import FATAL, described
from ..log import log

TICK_SECONDS = 1.0


class Ticks:
    """Calls a function again and again, whatever it raises, which is logged when it begins."""

    def __init__(self, name: str, tick: Callable[[], object]) -> None:
        self._name = name
        self._tick = tick
        self._fails = False

    def round(self) -> float:
        """Call it; return in how many seconds to call it again."""
        try:
            self._tick()
        except FATAL:
            raise
        except BaseException as error:  # noqa: BLE001  the application's code may raise anything
            if not self._fails:
                log.warning("tick failed", queue=self._name, error=described(error))
            self._fails = True
        else:
            self._fails = False
        return TICK_SECONDS
