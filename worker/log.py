"""The engine's log, which never raises into the work."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog


class _Log:
    """A logger of structlog whose errors are dropped: standard output may be a full disk or a closed pipe."""

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            with suppress(Exception):
                getattr(structlog.get_logger("worker"), level)(event, **fields)

        return write


log = _Log()
