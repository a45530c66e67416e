"""A pause: what it says, and where a flow may keep it."""

import re
from datetime import datetime
from typing import NamedTuple, Protocol

#: What people read in a line of a list or a log: it neither breaks the line nor turns it around.
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+$"
MAX_REASON = 200


class Pause(NamedTuple):
    """Why, by whom and since when a queue is paused, as far as that is known."""

    reason: str = ""
    by: str = ""
    at: datetime | None = None

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        since = "" if self.at is None else f" since {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"paused{by}{since}{f': {self.reason}' if self.reason else ''}"


def check_reason(text: str) -> None:
    """Raises ValueError for a text that cannot be one; there may be none."""
    text.encode()  # what the shell could not decode; its error is a ValueError
    if text and (len(text) > MAX_REASON or not re.fullmatch(PRINTABLE, text)):
        raise ValueError(f"a reason has up to {MAX_REASON} printable characters, in one line")


class Pauses(Protocol):
    """Keeps the pause of a flow's queue where Redis cannot lose it. Each method raises Unavailable."""

    def find(self) -> Pause | None:
        """The pause; None if the queue is not paused."""

    def begin(self, reason: str, by: str) -> None:
        """Pause, or change the reason."""

    def end(self) -> None:
        """End the pause, if there is one."""
