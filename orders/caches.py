"""What a process keeps in memory for a few seconds, so that not every request reads the database."""

import math
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic
from typing import Generic, Protocol, TypeVar

from orders.errors import StorageUnavailable

#: How long credentials are cached. A look-up for each request would cost half as much as reading an
#: order. What is revoked may work for this much longer in other processes.
CACHE_SECONDS = 5.0

T = TypeVar("T")


class Expiring(Protocol):
    """A credential that may expire."""

    @property
    def valid_ms(self) -> float:
        """How long it is still valid, from when it was read."""


E = TypeVar("E", bound=Expiring)


class Credentials(Generic[E]):
    """API keys or providers' secrets by their ids, for `CACHE_SECONDS` at most, and no longer than they are valid."""

    def __init__(self, ids: Callable[[], Collection[str]]) -> None:
        """``ids`` reads which credentials there are; while it raises StorageUnavailable, none is known by it."""
        self._entries: dict[str, tuple[E, float]] = {}  # until when
        self._changes = 0

        def known() -> Collection[str]:
            with suppress(StorageUnavailable):
                return ids()
            return ()

        self._ids = SharedRead(known, CACHE_SECONDS)

    def knows(self, credential_id: str) -> bool:
        """Whether a credential of this id exists, or did a few seconds ago."""
        return credential_id in self._entries or credential_id in self._ids.get()

    def get(self, credential_id: str, *, stale: bool = False) -> E | None:
        """What is cached; with ``stale``, even if it is too old."""
        value, until = self._entries.get(credential_id, (None, math.inf))
        return value if stale or monotonic() <= until else None

    def find(
        self, credential_id: str, read: Callable[[str], E | None], *, stale: bool = False
    ) -> E | None:
        """What is cached, or else what ``read`` finds. With ``stale``, an expired entry will do if ``read`` fails."""
        try:
            return self.get(credential_id) or self.refresh(credential_id, read)
        except StorageUnavailable:
            if cached := self.get(credential_id, stale=stale):
                return cached
            raise

    def refresh(self, credential_id: str, read: Callable[[str], E | None]) -> E | None:
        """What ``read`` finds now. Raises what it raises, and then keeps what is cached."""
        began, changes = monotonic(), self._changes
        found = read(credential_id)
        if found is None:
            self._entries.pop(credential_id, None)
        elif changes == self._changes:  # otherwise it may have been revoked meanwhile
            self._entries[credential_id] = found, began + min(CACHE_SECONDS, found.valid_ms / 1000)
        return found

    def forget(self, credential_id: str) -> None:
        """Have the next caller read it again, because it was changed."""
        self._changes += 1
        self._entries.pop(credential_id, None)


class SharedRead(Generic[T]):
    """Caches what ``read`` returns for ``seconds``. While one thread reads again, the others get the old value.

    So a server that hangs blocks one thread, not one for each open page. ``read`` must not raise.
    """

    def __init__(self, read: Callable[[], T], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._lock = threading.Lock()
        #: The value, until when it is fresh, and how many changes there had been when it was read.
        self._cached: tuple[T, float, int] | None = None
        self._changes = 0

    def get(self) -> T:
        if self._is_old() and self._lock.acquire(blocking=self._cached is None):
            try:
                if self._is_old():  # no other thread has read it meanwhile
                    changes = self._changes  # before reading: a change made meanwhile may be missed
                    self._cached = self._read(), monotonic() + self._seconds, changes
            finally:
                self._lock.release()
        assert self._cached is not None
        return self._cached[0]

    def forget(self) -> None:
        """Have the next caller read again, because something was changed."""
        self._changes += 1

    def _is_old(self) -> bool:
        if self._cached is None:
            return True
        _, until, changes = self._cached
        return monotonic() >= until or changes != self._changes
