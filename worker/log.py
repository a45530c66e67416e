"""The engine's log, which never raises into the work."""

from collections.abc import Callable
from typing import Any

import structlog

from .errors import FATAL


class _Log:
    """A logger of structlog whose errors are dropped: standard output may be a full disk or a closed pipe."""

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            try:
                getattr(structlog.get_logger("worker"), level)(event, **fields)
            except FATAL:
                raise
            except BaseException:  # noqa: BLE001, S110  structlog may ask the application's objects for their repr
                pass

        return write


log = _Log()
