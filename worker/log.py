"""The engine's log, which never raises into the work."""

import math
import time
from collections.abc import Callable
from typing import Any

import structlog

from .errors import fatal

#: How often what lasts is logged again.
REMIND_SECONDS = 60.0


class Log:
    """A logger of structlog whose errors are dropped: standard output may be a full disk or a closed pipe."""

    def __init__(self, name: str) -> None:
        self._logger = structlog.get_logger(name)

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            try:
                method = level
                if level == "exception":
                    method, fields["exc_info"] = "error", True
                shown: Any = fields
                if "exc_info" in fields:
                    # As text: structlog that is not configured shows local variables, such as payloads.
                    shown = structlog.processors.format_exc_info(None, level, fields)
                getattr(self._logger, method)(event, **shown)
            except fatal():
                raise
            except BaseException:  # noqa: BLE001, S110  structlog may ask the application's objects for their repr
                pass

        return write


log = Log("worker")


class Reminder:
    """Whether to log what lasts, such as an outage: when it begins, and then once a minute.

    ``clock`` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at = -math.inf

    def is_due(self) -> bool:
        """Whether to log it now; if so, not again for a minute."""
        now = self._clock()
        if now < self._due_at:
            return False
        self._due_at = now + REMIND_SECONDS
        return True

    def reset(self) -> None:
        """It is over, so the next one is logged at once."""
        self._due_at = -math.inf
