"""The process's log on standard error: formatted text on a terminal, otherwise one JSON object per line.

Control characters are escaped in both, so that no value can break its line or move the cursor.
"""

import logging
import os
import re
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from ..errors import without_statements

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def configure_logging(level: str = "") -> None:
    """Send this process's log, including that of the standard library, through structlog.

    Only for entry points: a library leaves logging to its process. ``level`` is one of `LEVELS`, in upper or
    lower case; empty means INFO. Raises ValueError for any other.
    """
    name = level.strip().upper() or "INFO"
    if name not in LEVELS:
        raise ValueError(f"LOG_LEVEL is one of {', '.join(LEVELS)}, not {level!r}")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,  # values that an application binds, such as a request's id
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.format_exc_info,
        _readable,
    ]
    render = _for_people() if sys.stderr.isatty() else _for_programs()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, *render, _as_line],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(_Lines(foreign_pre_chain=shared, processors=[without_meta, *render]))
    logging.basicConfig(level=name, handlers=[handler], force=True)
    # No line shows where it was written. Finding that out is half of its cost, and this is how Python's own
    # documentation says to leave it out.
    logging._srcfile = None  # noqa: SLF001


def _as_line(_logger: object, _method: str, line: Any) -> tuple[tuple[str], dict[str, Any]]:
    """For `_Lines`."""
    return (line,), {"extra": {"is_line": True}}


class _Lines(structlog.stdlib.ProcessorFormatter):
    """Leaves our own records as they are: rendering them here would cost as much again."""

    def format(self, record: logging.LogRecord) -> str:
        return record.msg if hasattr(record, "is_line") else super().format(record)


def _for_programs() -> list[Processor]:
    # JSON escapes control characters itself.
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _in_order,
        structlog.processors.JSONRenderer(),
    ]


def _in_order(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Put the same fields first in every line, so that a reader finds the event at once."""
    first = {name: event.pop(name) for name in ("timestamp", "level", "event")}
    return {**first, **event}


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
    """Escape what the renderer does not. A traceback keeps its line breaks."""
    event["event"] = visible(str(event["event"]))
    if "exception" in event:
        # Indented, so that an error's text cannot be taken for a log line.
        lines = event["exception"].split("\n")
        event["exception"] = "\n".join(f"  {visible(line)}" for line in lines)
    return event


#: What a URL says before its password.
USER = re.compile(r"://[^/\s:@]*:")
#: What may quote whatever a library had to do with.
TEXTS = ("event", "error", "reason", "exception")
#: Longer texts lose their middle. A library may quote a whole request in its error.
MOST_CHARACTERS = 20_000


def _readable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Leave out SQL statements, hide passwords in URLs, and cut long texts.

    The statements are in the code, and longer than all else; a library's error may contain the URL that it could not
    open. A cut comes last: it could leave half of a password that is not recognized.
    """
    half = MOST_CHARACTERS // 2
    for name in TEXTS:
        text = before = str(event.get(name, ""))
        if "\n[SQL: " in text:
            text = without_statements(text)
        if "://" in text:
            text = re.sub(r"\S+", _hide_password, text)
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:half]} [...] {text[-half:]}"
        if text != before:
            event[name] = text
    return event


def _hide_password(word: re.Match[str]) -> str:
    """A word in which everything up to the last @ may be a password. Takes linear time."""
    text = word[0]
    at = text.rfind("@")
    user = USER.search(text, 0, max(0, at))
    return f"{text[: user.end()]}***{text[at:]}" if user else text


def visible(text: str) -> str:
    """``text`` with everything escaped that is not printable."""
    return text if text.isprintable() else repr(text)[1:-1]
