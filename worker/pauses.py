"""A pause: what it says, and where a flow may keep it."""

from datetime import datetime
from typing import NamedTuple, Protocol


class Pause(NamedTuple):
    """Why, by whom and since when a queue is paused, as far as that is known."""

    reason: str = ""
    by: str = ""
    at: datetime | None = None

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        since = "" if self.at is None else f" since {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"paused{by}{since}{f': {self.reason}' if self.reason else ''}"


class Pauses(Protocol):
    """Keeps the pause of a flow's queue where Redis cannot lose it. Each method raises Unavailable."""

    def find(self) -> Pause | None:
        """The pause; None if the queue is not paused."""

    def begin(self, reason: str, by: str) -> None:
        """Pause, or change the reason."""

    def end(self) -> None:
        """End the pause, if there is one."""
