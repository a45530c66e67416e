"""The process's log on standard error: for people on a terminal, elsewhere one JSON object a line.

Control characters are escaped in both, so that no value can break its line or move the cursor.
"""

import logging
import os
import sys

import structlog
from structlog.typing import EventDict, Processor

from .errors import described

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def configure_logging(level: str = "") -> None:
    """Send this process's log, the standard library's included, through structlog.

    For entry points: a library leaves its process's log alone. ``level`` is one of `LEVELS`, in any
    case; an empty one means INFO. Raises ValueError for any other.
    """
    name = level.strip().upper() or "INFO"
    if name not in LEVELS:
        raise ValueError(f"LOG_LEVEL is one of {', '.join(LEVELS)}, not {level!r}")
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.format_exc_info,
    ]
    render = _for_people() if sys.stderr.isatty() else _for_programs()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(level=name, handlers=[handler], force=True)


def log_failure(queue: str, task_id: str, error: Exception) -> None:
    """Say that a task failed, and where: it is tried again, so this is no error yet."""
    structlog.get_logger("worker").warning(
        "task failed", queue=queue, id=task_id, error=described(error), exc_info=error
    )


def _for_programs() -> list[Processor]:
    # JSON escapes control characters itself.
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.JSONRenderer(),
    ]


def _for_people() -> list[Processor]:
    return [
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        _escape,
        structlog.dev.ConsoleRenderer(
            colors=not os.environ.get("NO_COLOR"),  # https://no-color.org
            repr_native_str=True,  # repr escapes; otherwise only strings with spaces get it
            sort_keys=False,
        ),
    ]


def _escape(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape what the renderer does not. A traceback keeps its lines."""
    event["event"] = visible(str(event["event"]))
    if "exception" in event:
        event["exception"] = "\n".join(map(visible, event["exception"].split("\n")))
    return event


def visible(text: str) -> str:
    """``text`` with everything escaped that is not printable."""
    return text if text.isprintable() else repr(text)[1:-1]
