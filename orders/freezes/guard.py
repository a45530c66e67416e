"""Freezes that open by themselves: when payers cannot reach us, and when a clock jumps.

Each worker looks about once a second, whatever Redis does, and before it cancels after it could not.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid5

import sqlalchemy as sa

from orders.errors import FreezeNotFound, KeyReused, StorageUnavailable
from orders.freezes.clock import ClockWatch, Look, uptime_ms
from orders.freezes.domain import GIVE_BACK_SECONDS, MAX_SECONDS, FreezeState
from orders.freezes.service import Freezes
from orders.freezes.signs import CLOCK, DOOR, Signs
from orders.log import log
from orders.sql.errors import translated

#: Before orders are cancelled, the last look must be no older.
FRESH_MS = 3000.0
#: How often Redis's clock is read: only to tell which of two clocks jumped.
REDIS_MS = 10_000.0
#: For how long a clock must agree again before a freeze ends that opened when it jumped.
AGREES_MS = 60_000.0
#: Beyond the clock's latest time, for rounding.
ROUNDING_MS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What opens a freeze, 0 never; and how long it lasts."""

    door_seconds: float
    clock_seconds: float
    at_most_seconds: float


class Guard:
    """Raises StorageUnavailable from every method while the database does not answer."""

    def __init__(
        self,
        engine: sa.Engine,
        limits: Limits,
        redis_ms: Callable[[], float | None],
        own_ms: Callable[[], float] = uptime_ms,
        wall_ms: Callable[[], float | None] = lambda: 1000 * time.time(),
    ) -> None:
        """``redis_ms`` is Redis's clock, None while it does not answer; ``own_ms`` is this machine's, which
        nobody sets, and ``wall_ms`` its clock of day.
        """
        self._freezes, self._signs = Freezes(engine), Signs(engine)
        self._limits = limits
        self._redis_ms, self._own_ms, self._wall_ms = redis_ms, own_ms, wall_ms
        jump_ms = 1000 * limits.clock_seconds
        self._sql, self._redis, self._wall = (ClockWatch(jump_ms) for _ in range(3))
        #: The silence of the API for which a freeze was opened.
        self._silent_since: datetime | None = None
        self._redis_read_at = self._looked_at = -math.inf
        #: When the API will have been silent for long enough, unless there is another sign by then.
        self._silent_at = math.inf
        #: The freeze that waits for the clock to agree again, and since when it does.
        self._clock_freeze: str | None = None
        self._agrees_since: float | None = None
        self._fails = False
        self._lock = threading.Lock()

    def look(self) -> None:
        """Look at the clock and the door, and open or end their freezes."""
        with self._lock:
            before = self._own_ms()
            found = self._signs.look()
            after = self._own_ms()
            if self._limits.clock_seconds:
                self._watch_clock(Look(1000 * found.at.timestamp(), before, after))
            if self._limits.door_seconds and self._clock_freeze is None:
                left = self._watch_door(found.at, found.signed_at, is_shut=found.is_shut)
                self._silent_at = before + 1000 * left
            self._looked_at = after

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
                if not self._fails:
                    log.exception("guard failed")
                self._fails = True
            else:
                self._fails = False
        latest = self._sql.latest_ms(self._own_ms()) if self._limits.clock_seconds else None
        return (
            None if latest is None else datetime.fromtimestamp((latest + ROUNDING_MS) / 1000, UTC)
        )

    # -- the door --------------------------------------------------------------------------

    def _watch_door(self, now: datetime, signed_at: datetime | None, *, is_shut: bool) -> float:
        """Returns in how many seconds to look again at the latest, before anybody is cancelled."""
        if signed_at is None:  # a deployment without an API
            return math.inf
        left = self._limits.door_seconds - (now - signed_at).total_seconds()
        if left < 0 and not is_shut and signed_at != self._silent_since:
            # Once for each silence, whichever worker is first: not again when somebody thawed it, or its bound is over.
            self._open(
                DOOR, f"No API process has served since {_text(signed_at)}.", _text(signed_at)
            )
            self._silent_since = signed_at
        if is_shut and left >= 0:
            self._freezes.thaw_all(DOOR)
        return math.inf if left < 0 else left

    # -- the clock -------------------------------------------------------------------------

    def _watch_clock(self, look: Look) -> None:
        jump_ms = self._sql.jump_ms(look)
        if self._clock_freeze is not None:
            self._watch_frozen_clock(self._clock_freeze, look, agrees=not jump_ms)
        elif not jump_ms:
            self._accept(look)
            if look.after_ms > self._redis_read_at + REDIS_MS and (redis := self._look_at_redis()):
                self._redis.accept(redis)
        elif (redis := self._look_at_redis()) and self._only_stood_still(redis, jump_ms):
            log.warning("this machine's clock stood still", seconds=round(jump_ms / 1000, 1))
            self._accept(look)
            self._redis.accept(redis)
        else:
            self._clock_freeze, self._agrees_since = self._open_for_jump(jump_ms), None

    def _accept(self, look: Look) -> None:
        self._sql.accept(look)
        if wall := self._look_at(self._wall_ms):
            self._wall.accept(wall)

    def _only_stood_still(self, redis: Look, jump_ms: float) -> bool:
        """Whether this machine slept: Redis's clock jumped the same way, and its own clock of day did not.

        If that did, too, somebody has set it, and it may be the database's.
        """
        wall = self._look_at(self._wall_ms)
        was_set = wall is not None and self._wall.jump_ms(wall) != 0
        return self._redis.jump_ms(redis) * jump_ms > 0 and not was_set

    def _look_at_redis(self) -> Look | None:
        self._redis_read_at = self._own_ms()
        return self._look_at(self._redis_ms)

    def _look_at(self, clock_ms: Callable[[], float | None]) -> Look | None:
        before = self._own_ms()
        told = clock_ms()
        return None if told is None else Look(told, before, self._own_ms())

    def _open_for_jump(self, jump_ms: float) -> str:
        seconds = abs(jump_ms) / 1000
        way = "ahead" if jump_ms > 0 else "back"
        give_back = min(MAX_SECONDS, GIVE_BACK_SECONDS + max(0.0, jump_ms / 1000))
        reason = f"The database's clock jumped {seconds:.1f} s {way}."
        return self._open(CLOCK, reason, give_back=give_back)

    def _watch_frozen_clock(self, freeze_id: str, look: Look, *, agrees: bool) -> None:
        try:
            is_open = self._freezes.get(freeze_id).state is FreezeState.OPEN
        except FreezeNotFound:
            is_open = False
        if not is_open:  # somebody says that this clock is right, or nobody did in time
            self._clock_freeze = None
            self._accept(look)
        elif not agrees:
            self._agrees_since = None
        elif self._agrees_since is None:
            self._agrees_since = look.after_ms
        elif look.after_ms - self._agrees_since >= AGREES_MS:
            self._freezes.thaw_all(CLOCK)
            self._clock_freeze = None

    # -- freezes ---------------------------------------------------------------------------

    def _open(
        self, rule: str, reason: str, once: str = "", give_back: float = GIVE_BACK_SECONDS
    ) -> str:
        """Freeze everything, unless the rule has an open freeze; only ``once``, if it is given.

        Returns the freeze's id. Of workers that are at it together one opens it.
        """
        latest = [freeze.id for freeze in self._freezes.page(page_size=1)]
        if known := self._freezes.open_ones(rule):
            return known[0]
        made_id = str(uuid5(NAMESPACE_OID, f"{rule} {once or latest}"))
        with suppress(KeyReused):  # another worker did, and says it in other words
            self._freezes.open(
                reason=reason,
                by=rule,
                seconds=min(MAX_SECONDS, self._limits.at_most_seconds),
                give_back_seconds=math.ceil(give_back),
                made_id=made_id,
            )
        return made_id


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
