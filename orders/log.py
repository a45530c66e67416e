"""The service's log. Like the engine's it shows no local variables, however logging is configured."""

from worker.log import Log, Reminder

__all__ = ["Reminder", "log"]

log = Log("orders")
