"""One look at all queues of a worker, in place of a claim and an extended turn for each that has nothing to do."""

from collections.abc import Sequence

import redis

from ..errors import described
from ..log import log
from . import lane
from .liveness import Watched


class Lookout:
    """Looks every `SLOW_POLL_SECONDS` whether there is something to claim before it looks again.

    Lanes leave out the slow polls of queues in which there is nothing. Without an answer they leave out none,
    and sweepers extend their turns themselves.
    """

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched
        self._clock = watched[0].station.queue.environment.clock

    def round(self) -> float:
        """Look; return in how many seconds to look again."""
        asked_at, seconds = self._clock(), lane.SLOW_POLL_SECONDS + lane.MARGIN_SECONDS
        rows = [
            (
                each.station.queue,
                round(1000 * each.station.flow.lease_seconds),
                each.lane.alarm.claimer,
                each.sweeper.turn_of(asked_at) if each.sweeper else "",
            )
            for each in self._watched
        ]
        try:
            found = [*rows[0][0].glance(rows, within_ms=round(1000 * seconds))]
        except redis.RedisError as error:
            log.debug("lookout failed", error=described(error))
            return lane.SLOW_POLL_SECONDS
        for each, (*_, worker), (is_near, turn) in zip(self._watched, rows, found, strict=True):
            each.station.quiet_until = -1.0 if is_near else asked_at + seconds
            if is_near:
                each.lane.alarm.set()
            if each.sweeper and worker:
                each.sweeper.extended(asked_at, turn=turn)
        return lane.SLOW_POLL_SECONDS
