"""Freezes that open by themselves: when payers cannot reach us, and when a clock jumps.

Each worker looks about once a second, whatever Redis does, and before it cancels after it could not.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import sqlalchemy as sa

from orders.db.database import reading
from orders.db.errors import translated
from orders.errors import KeyReused, StorageUnavailable
from orders.features.freezes.clock import ClockWatch, Look, uptime_ms
from orders.features.freezes.domain import GIVE_BACK_SECONDS, MAX_SECONDS, FreezeState
from orders.features.freezes.service import SQL, Freezes
from orders.features.freezes.settings import FreezeSettings
from orders.features.freezes.signs import CLOCK, DOOR
from orders.log import Reminder, log

#: Before orders are cancelled, the last look must be no older.
FRESH_MS = 3000.0
#: How often the other clocks are read: only to tell which of two clocks jumped.
OTHERS_MS = 10_000.0
#: For how long a clock must agree again before a freeze ends that opened when it jumped.
AGREES_MS = 60_000.0
#: Beyond the clock's latest time, for rounding.
ROUNDING_MS = 2.0


class Guard:
    """Raises StorageUnavailable from every method while the database does not answer."""

    def __init__(
        self,
        engine: sa.Engine,
        settings: FreezeSettings,
        redis_ms: Callable[[], float | None],
        own_ms: Callable[[], float] = uptime_ms,
        wall_ms: Callable[[], float | None] = lambda: 1000 * time.time(),
    ) -> None:
        """``redis_ms`` is Redis's clock, None while it does not answer; ``own_ms`` is this machine's, which
        nobody sets, and ``wall_ms`` its clock of day.
        """
        self._engine, self._freezes = engine, Freezes(engine)
        self._settings = settings
        self._redis_ms, self._own_ms, self._wall_ms = redis_ms, own_ms, wall_ms
        self._sql, self._last, self._redis, self._wall = (
            ClockWatch(1000 * settings.clock_freeze_jump_seconds) for _ in range(4)
        )
        self._others_read_at = self._looked_at = -math.inf
        #: When the API will have been silent for long enough, unless there is another sign by then.
        self._silent_at = math.inf
        #: While a freeze waits for the clock to agree again: when it last disagreed.
        self._disagreed_at: float | None = None
        self._failure = Reminder()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Look at the clock and the door, and open or end their freezes."""
        with self._lock:
            before = self._own_ms()
            found = self._read()
            after = self._own_ms()
            if self._settings.clock_freeze_jump_seconds:
                self._watch_clock(Look(1000 * found.at.timestamp(), before, after), found)
            if self._settings.door_freeze_after_seconds and self._disagreed_at is None:
                self._silent_at = before + 1000 * self._watch_door(found)
            self._looked_at = after

    def _read(self) -> sa.Row[Any]:
        with reading(self._engine) as sql:
            return SQL.look(sql).one()

    def not_after(self) -> datetime | None:
        """The latest that SQL's clock can show now, unless it jumped: what is due later must not be cancelled.

        Looks first if that was not possible lately, and if the door may have been shut for too long since. An
        error of its own must not count against orders: it is logged, and they go on.
        """
        if self._own_ms() > min(self._looked_at + FRESH_MS, self._silent_at):
            try:
                with translated():
                    self.look()
            except StorageUnavailable:
                raise
            except Exception:
                if self._failure.is_due():
                    log.exception("guard failed")
        latest = self._sql.latest_ms(self._own_ms())
        if latest is None:
            return None
        return datetime.fromtimestamp((latest + ROUNDING_MS) / 1000, UTC)

    def _watch_door(self, found: sa.Row[Any]) -> float:
        """Returns in how many seconds to look again at the latest, before anybody is cancelled."""
        if found.signed_at is None:  # a deployment without an API
            return math.inf
        silent: timedelta = found.at - found.signed_at
        left = self._settings.door_freeze_after_seconds - silent.total_seconds()
        if left >= 0:
            if found.is_shut:
                self._end(DOOR)
            return left
        if not found.is_shut:
            # Once for each silence, whichever worker is first: not again when somebody thawed it, or its bound is over.
            since = found.signed_at.isoformat(timespec="milliseconds")
            self._open(DOOR, f"No API process has served since {since}.", once=since)
        return math.inf

    def _watch_clock(self, look: Look, found: sa.Row[Any]) -> None:
        jump_ms, jumped_again = self._sql.jump_ms(look), self._last.jump_ms(look)
        self._last.accept(look)
        if self._disagreed_at is not None and found.is_doubted:
            if jump_ms:
                self._disagreed_at = look.after_ms
            elif look.after_ms > self._disagreed_at + AGREES_MS:
                self._end(CLOCK)
                self._disagreed_at = None
        elif not jump_ms or (self._disagreed_at is not None and not jumped_again):
            # If it was doubted, somebody says that it is right, or nobody did in time: it has not jumped past the end.
            self._disagreed_at = None
            self._accept(look)
        elif self._only_stood_still(jump_ms):
            log.warning("this machine's clock stood still", seconds=round(jump_ms / 1000, 1))
            self._others_read_at = -math.inf
            self._accept(look)
        else:
            if not found.is_doubted:
                way = "ahead" if jump_ms > 0 else "back"
                reason = f"The database's clock jumped {abs(jump_ms) / 1000:.1f} s {way}."
                give_back = GIVE_BACK_SECONDS + max(0.0, jump_ms / 1000)
                # Of workers that see the jump together, one opens it.
                self._open(CLOCK, reason, once=f"{found.latest}", give_back=give_back)
            self._disagreed_at = look.after_ms

    def _accept(self, look: Look) -> None:
        self._sql.accept(look)
        if look.after_ms > self._others_read_at + OTHERS_MS:
            self._others_read_at = look.after_ms
            self._redis.accept(self._look_at(self._redis_ms))
            self._wall.accept(self._look_at(self._wall_ms))

    def _only_stood_still(self, jump_ms: float) -> bool:
        """Whether this machine slept: Redis's clock jumped the same way, and its own clock of day did not.

        If that did, too, somebody has set it, and it may be the database's.
        """
        redis_ms = self._redis.jump_ms(self._look_at(self._redis_ms))
        return redis_ms * jump_ms > 0 and not self._wall.jump_ms(self._look_at(self._wall_ms))

    def _look_at(self, clock_ms: Callable[[], float | None]) -> Look | None:
        before = self._own_ms()
        told = clock_ms()
        return None if told is None else Look(told, before, self._own_ms())

    def _open(
        self, rule: str, reason: str, *, once: str, give_back: float = GIVE_BACK_SECONDS
    ) -> None:
        """Freeze everything, once."""
        with suppress(KeyReused):  # another worker did, and says it in other words
            self._freezes.open(
                reason=reason,
                by=rule,
                seconds=self._settings.freeze_at_most_seconds,
                give_back_seconds=math.ceil(min(MAX_SECONDS, give_back)),
                made_id=str(uuid5(NAMESPACE_OID, f"{rule} {once}")),
            )

    def _end(self, rule: str) -> None:
        for freeze in self._freezes.in_force():
            if (freeze.opened_by, freeze.state) == (rule, FreezeState.OPEN):
                self._freezes.thaw(freeze.id, by=rule)
