"""The engine's log, which never raises into the work."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

import structlog

from .errors import FATAL

#: Longer tracebacks are passed on as text: structlog's own renderer would spend a minute on 100 KB.
MOST_CHARACTERS = 10_000


class _Log:
    """A logger of structlog whose errors are dropped: standard output may be a full disk or a closed pipe."""

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            try:
                error = fields.get("exc_info") or (level == "exception" and sys.exception())
                text = "".join(traceback.format_exception(error)) if error else ""
                if len(text) > MOST_CHARACTERS:
                    fields |= {"exc_info": None, "exception": text}
                getattr(structlog.get_logger("worker"), level)(event, **fields)
            except FATAL:
                raise
            except BaseException:  # noqa: BLE001, S110  structlog may ask the application's objects for their repr
                pass

        return write


log = _Log()
