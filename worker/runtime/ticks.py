"""Calls a flow's ``tick`` every second."""

from collections.abc import Callable

from ..errors import described, fatal
from ..log import Reminder, log
from ..queue.environment import Clock

#: How often a flow's `tick` is called.
TICK_SECONDS = 1.0


class Ticks:
    """Calls a function again and again, whatever it raises, which is logged once a minute."""

    def __init__(self, name: str, tick: Callable[[], object], clock: Clock) -> None:
        self._name = name
        self._tick = tick
        self._failure = Reminder(clock)

    def round(self) -> float:
        """Call it; return in how many seconds to call it again."""
        try:
            self._tick()
        except fatal():
            raise
        except BaseException as error:  # noqa: BLE001  the application's code may raise anything
            if self._failure.is_due():
                log.warning("tick failed", queue=self._name, error=described(error))
        else:
            self._failure.reset()
        return TICK_SECONDS
