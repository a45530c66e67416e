"""The engine's first listener: a line in the log for each event that somebody may look for later."""

import dataclasses
import math
from collections import defaultdict
from typing import Any

from .. import events
from ..errors import described
from ..log import Reminder, log
from ..queue.advice import redis_advice
from ..queue.environment import Clock

#: The level and the text for each kind of event; other kinds are not logged.
EVENTS: dict[type[events.Event], tuple[str, str]] = {
    events.Handled: ("info", "batch"),
    events.Retried: ("debug", "retry"),
    events.Failed: ("warning", "task failed"),  # not yet an error: it is tried again
    events.Died: ("error", "dead letter"),
    events.Restored: ("info", "restored"),
    events.LeaseLost: ("warning", "lease lost, nothing written"),
    events.RanTooLong: ("error", "handler runs too long, its lease ends"),
    events.RedisLost: ("error", "Redis does not serve claims"),
    events.RedisBack: ("info", "Redis serves claims again"),
    events.FlowDown: ("error", "unavailable"),
    events.FlowUp: ("info", "available"),
    events.Hangs: ("error", "a call hangs"),
}
#: The names of the fields of each kind of event.
FIELDS = {kind: [field.name for field in dataclasses.fields(kind)] for kind in EVENTS}


class EventLog:
    """Writes a line for each event that somebody may look for later.

    What is unavailable to single tasks may be so to many: it has a line once a minute for each queue.
    """

    def __init__(self, clock: Clock) -> None:
        self._unavailable = defaultdict[str, Reminder](lambda: Reminder(clock))

    def __call__(self, event: events.Event) -> None:
        if (line := EVENTS.get(type(event))) is None:
            return
        level, text = line
        if isinstance(event, events.Handled) and event.without_redis:
            text = "handled without Redis"
        if isinstance(event, events.Retried) and event.error is not None:
            if not self._unavailable[event.queue].is_due():
                return
            level, text = "warning", "unavailable to this task"
        fields: dict[str, Any] = {}
        for name in FIELDS[type(event)]:
            fields |= _shown(name, getattr(event, name))
        if isinstance(event, events.RedisLost) and (advice := redis_advice(event.error)):
            fields["advice"] = advice
        if isinstance(event, events.Failed | events.Died):
            fields["exc_info"] = event.error
        getattr(log, level)(text, **fields)


def _shown(name: str, value: Any) -> dict[str, Any]:
    """The fields of a log line for one field of an event; there may be none."""
    match name, value:
        case "task", _:
            shown: dict[str, Any] = {"id": value.id, "attempt": value.attempt}
        case "tasks", [task]:
            shown = {"tasks": 1, "id": task.id, "attempt": task.attempt}
        case "tasks", [*tasks]:
            shown = {"tasks": len(tasks)}
        case "ids", _:
            shown = {"tasks": len(value), "ids": [*value[:10]]}
        case "error", BaseException():
            shown = {"error": described(value)}
        case "seconds", _:
            shown = {"seconds": round(value, 3)}
        case "delay_ms", _ if math.isfinite(value):  # JSON has no infinity
            shown = {"delay_ms": round(value)}
        case (("error" | "delay_ms" | "without_redis"), _):
            shown = {}
        case _:
            shown = {name: value}
    return shown
