"""Refusals of freezes."""

from orders.errors import Conflict, Invalid, NotFound


class FreezeNotFound(NotFound):
    """There is no such freeze."""


class FreezeEnded(Conflict):
    """This freeze has ended: open another one."""


class FreezeOutOfRange(Invalid):
    """A freeze lasts up to a day; it can be prolonged."""
