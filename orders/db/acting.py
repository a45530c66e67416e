"""Which API key the work of this moment is done with, so that what is written can say so."""

from contextvars import ContextVar

#: The id of the key of the request that this thread serves; None without one.
KEY_ID: ContextVar[str | None] = ContextVar("key_id", default=None)
