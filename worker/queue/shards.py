"""A queue in several parts, for more load than one core or one Redis server can take.

Each part is a queue of its own: shard 0 has the queue's name, shard 2 of ``orders`` is called ``orders/2``. So each has
a slot of its own in a cluster, or a server of its own where the URL names several. A task's id says which shard it is in.

The number may change at any time, because the records are the truth: the sweep restores each task in its new shard before
it is due. Meanwhile it may be in the old one, too, and be run twice. Shards that are no longer filled are served as long as
``shards_before`` asks for it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar
from zlib import crc32

import redis

from ..flow import Due, Flow, Sweep
from .delay_queue import DelayQueue
from .environment import REAL, Environment
from .formats import id_to_bytes, ids_to_bytes
from .operator_side import LETTERS
from .replies import (
    Cancelled,
    Letter,
    Restored,
    Scheduled,
    Stats,
    TaskState,
    WorkerStatus,
)
from .scheduler import BatchScheduler

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def shard_of(task_id: str, shards: int) -> int:
    """Which shard a task is in."""
    return crc32(id_to_bytes(task_id)) % shards


def shard_names(name: str, shards: int) -> list[str]:
    """The names of a queue's shards."""
    return [name, *(f"{name}/{n}" for n in range(1, shards))]


def shards_of(flow: Flow) -> list[Flow]:
    """What a worker runs: a flow for each shard, with its own name and the rows of the sweep that are its own."""
    served = max(flow.shards, flow.shards_before)
    if served == 1:
        return [flow]
    flow, shards = replace(flow, shards=1, shards_before=0), flow.shards
    rest = replace(flow, tick=None, finish=None)  # once in each worker is enough
    emptied = replace(rest, sweep=None, without_redis="wait")
    return [
        replace(rest if n else flow, name=name, sweep=rest.sweep and _own(rest.sweep, n, shards))
        if n < shards
        else replace(emptied, name=name)
        for n, name in enumerate(shard_names(flow.name, served))
    ]


def _own(sweep: Sweep, shard: int, shards: int) -> Sweep:
    """A sweep that yields only the rows of one shard."""

    def is_own(row: Due) -> bool:
        try:
            return shard_of(row.id, shards) == shard
        except Exception:  # noqa: BLE001  a row may be anything; the first shard logs those that are no tasks
            return shard == 0

    def own(after_seconds: float | None, before_seconds: float) -> Iterator[Sequence[Due]]:
        for page in sweep(after_seconds, before_seconds):
            yield [row for row in page if is_own(row)]

    return own


def queue_of(client: redis.Redis, name: str, shards: int = 1, before: int = 0) -> DelayQueue:
    """A queue: all its shards as one."""
    if max(shards, before) == 1:
        return DelayQueue(client, name)
    return ShardedQueue(client, name, shards, before=before)


def queue_of_flow(client: redis.Redis, name: str, flow: Flow | None) -> DelayQueue:
    """The queue of a flow, if it is known; otherwise the one with this name."""
    return queue_of(client, name, *((flow.shards, flow.shards_before) if flow else ()))


def scheduler_of(queue: DelayQueue) -> BatchScheduler:
    """What schedules in the background, with a thread for each shard."""
    return ShardedScheduler(queue) if isinstance(queue, ShardedQueue) else BatchScheduler(queue)


def parts_of(queue: DelayQueue) -> Sequence[DelayQueue]:
    """The shards of a queue; a queue without any is its own."""
    return queue.parts if isinstance(queue, ShardedQueue) else [queue]


class ShardedQueue(DelayQueue):
    """The queue ``name`` in so many shards, for those who schedule, look and repair::

        queue = ShardedQueue(client, "orders", 4)

    Tasks go to their shards, one shard after another; counts and lists are those of all. If one shard does not answer,
    changes are still made in the others, and then its error is raised. Claims and leases are each shard's own:
    see ``parts``. ``before`` is how many shards there were before, if those are still to be emptied.
    """

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        shards: int,
        *,
        before: int = 0,
        environment: Environment = REAL,
    ) -> None:
        super().__init__(client, name, environment=environment)
        self.shards, self.shards_before = shards, before
        #: Those that are filled, and then those that are only emptied.
        self.parts = [
            DelayQueue(client, each, environment=environment)
            for each in shard_names(name, max(shards, before))
        ]

    # -- to each shard its own -------------------------------------------------------------

    def schedule_many(
        self,
        tasks: Iterable[tuple[str, float, bytes] | Due],
        *,
        only_if_absent: bool = False,
        now_ms: int | None = None,
    ) -> list[Scheduled]:
        def schedule(part: DelayQueue, own: list[Any]) -> list[Scheduled]:
            return part.schedule_many(own, only_if_absent=only_if_absent, now_ms=now_ms)

        return self._answered([*tasks], schedule)

    def cancel_many(self, ids: Iterable[str]) -> list[Cancelled]:
        return self._answered(_listed(ids), DelayQueue.cancel_many)

    def restore(self, waiting: Sequence[Due], **options: Any) -> Restored:
        each = _every(
            lambda item: item[0].restore([waiting[place] for place in item[1]], **options),
            self._sorted(waiting),
        )
        return Restored(
            lost=tuple(task_id for found in each for task_id in found.lost),
            due=sum(found.due for found in each),
            parked=0,
            paused=any(found.paused for found in each),
        )

    def _answered(
        self, rows: Sequence[Any], call: Callable[[DelayQueue, list[Any]], list[Answer]]
    ) -> list[Answer]:
        """Call each shard with its own rows; return the answers in the order of the rows."""
        answers: dict[int, Answer] = {}

        def send(item: tuple[DelayQueue, list[int]]) -> None:
            part, places = item
            own = call(part, [rows[place] for place in places])
            answers.update(zip(places, own, strict=True))

        _every(send, self._sorted(rows))
        return [answers[place] for place in range(len(rows))]

    def _sorted(self, rows: Sequence[Any]) -> Iterable[tuple[DelayQueue, list[int]]]:
        """The places of each shard's rows, which are ids or begin with one."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            task_id = row if isinstance(row, str) else row[0]
            places[shard_of(task_id, self.shards)].append(place)
        return [(self.parts[shard], places[shard]) for shard in sorted(places)]

    # -- all together ----------------------------------------------------------------------

    def stats(self, *, now_ms: int | None = None) -> Stats:
        each = [part.stats(now_ms=now_ms) for part in self.parts]
        return Stats(
            scheduled=sum(one.scheduled for one in each),
            due=sum(one.due for one in each),
            due_within_minute=sum(one.due_within_minute for one in each),
            leased=sum(one.leased for one in each),
            dead=sum(one.dead for one in each),
            paused=any(one.paused for one in each),
            next_due_in_ms=min(
                (one.next_due_in_ms for one in each if one.next_due_in_ms is not None), default=None
            ),
            oldest_due_age_ms=max(one.oldest_due_age_ms for one in each),
            oldest_dead_age_ms=max(one.oldest_dead_age_ms for one in each),
        )

    def forecast(
        self, intervals: int = 30, interval_ms: int = 60_000, *, now_ms: int | None = None
    ) -> list[int]:
        each = [part.forecast(intervals, interval_ms, now_ms=now_ms) for part in self.parts]
        return [*map(sum, zip(*each, strict=True))]

    def upcoming(self, limit: int = 10) -> list[tuple[str, int]]:
        found = merge(*(part.upcoming(limit) for part in self.parts), key=itemgetter(1))
        return [*islice(found, limit)]

    def look_up(self, task_id: str, *, now_ms: int | None = None) -> TaskState | None:
        own = self.parts[shard_of(task_id, self.shards)]
        found = (part.look_up(task_id, now_ms=now_ms) for part in [own, *self.parts])
        return next(filter(None, found), None)

    def inspect(self, sample: int = 200) -> list[str]:
        return [problem for part in self.parts for problem in part.inspect(sample)]

    def workers(self) -> list[WorkerStatus]:
        known: defaultdict[str, list[WorkerStatus]] = defaultdict(list)
        for part in self.parts:
            for worker in part.workers():
                known[worker.id].append(worker)
        return [_together(known[worker]) for worker in sorted(known)]

    def pause(self, reason: str = "", by: str = "") -> None:
        _every(lambda part: part.pause(reason, by), self.parts)

    def resume(self) -> None:
        _every(DelayQueue.resume, self.parts)

    def destroy(self) -> None:
        _every(DelayQueue.destroy, self.parts)

    def wake(self) -> None:
        _every(DelayQueue.wake, self.parts)

    # -- dead letters ----------------------------------------------------------------------

    def requeue(self, ids: Iterable[str], *, now_ms: int | None = None) -> list[str]:
        wanted = _listed(ids)
        found = _every(lambda part: part.requeue(wanted, now_ms=now_ms), self.parts)
        return [*chain.from_iterable(found)]

    def purge(self, ids: Iterable[str]) -> list[str]:
        wanted = _listed(ids)
        return [*chain.from_iterable(_every(lambda part: part.purge(wanted), self.parts))]

    def letters(self, ids: Iterable[str], *, with_payloads: bool = True) -> list[Letter]:
        wanted = _listed(ids)
        found = {
            letter.id: letter
            for part in self.parts
            for letter in part.letters(wanted, with_payloads=with_payloads)
        }
        return [found[task_id] for task_id in dict.fromkeys(wanted) if task_id in found]

    def dead(self, limit: int = 100, offset: int = 0) -> list[Letter]:
        newest = (task_id for page in self.newest_dead_ids() for task_id in page)
        return self.letters(islice(newest, offset, offset + limit))

    def newest_dead_ids(self, after: tuple[int, str] | None = None) -> Iterator[list[str]]:
        # Within a millisecond, one shard comes after another.
        home = 0 if after is None else self._home(after[1])
        found = merge(
            *(
                _newest(part, (after[0] - 1, "") if after and n < home else after)
                for n, part in enumerate(self.parts)
            ),
            key=itemgetter(0),
        )
        while page := [task_id for _, task_id in islice(found, LETTERS)]:
            yield page

    def _home(self, task_id: str) -> int:
        """Which shard has this dead letter."""
        has_it = (bool(part.letters([task_id], with_payloads=False)) for part in self.parts)
        return next((n for n, has in enumerate(has_it) if has), shard_of(task_id, self.shards))

    def dead_ids(self) -> Iterator[list[str]]:
        for part in self.parts:
            yield from part.dead_ids()


def _listed(ids: Iterable[str]) -> list[str]:
    """Raises TypeError for a single id, whose letters would be taken for ids."""
    listed = [*ids]
    ids_to_bytes(ids if isinstance(ids, str) else listed)
    return listed


def _every(call: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Call it with each item, even if one shard does not answer; then raise that one's error."""
    answers, errors = list[Answer](), list[redis.RedisError]()
    for item in items:
        try:
            answers.append(call(item))
        except redis.RedisError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return answers


def _newest(part: DelayQueue, after: tuple[int, str] | None) -> Iterator[tuple[int, str]]:
    """The dead letters of a shard, newest first: when each died, in ms and negative, and its id."""
    for page in part.newest_dead_ids(after):
        for letter in part.letters(page, with_payloads=False):
            yield -letter.story["died_at_ms"], letter.id


def _together(shards: Sequence[WorkerStatus]) -> WorkerStatus:
    """One worker as its shards know it."""
    details = [each.details for each in shards]
    late: Counter[float | None] = Counter()
    for each in details:
        late.update(dict(each.get("lateness", [])))
    summed = {
        "up": all(each.get("up", True) for each in details),
        "holds": sum(each.get("holds", 0) for each in details),
        "held": [task_id for each in details for task_id in each.get("held", [])],
        "oldest_seconds": max(each.get("oldest_seconds", 0.0) for each in details),
        "handled": sum(each.get("handled") or 0 for each in details),
        "lateness": [*late.items()],
    }
    latest = min(shards, key=lambda each: each.heard_ms_ago)
    return latest._replace(details={**latest.details, **summed})


class ShardedScheduler(BatchScheduler):
    """A `BatchScheduler` with a thread for each shard, so that none waits for another."""

    def __init__(self, queue: ShardedQueue) -> None:
        super().__init__(queue)
        self._parts = [BatchScheduler(part) for part in queue.parts[: queue.shards]]

    def schedule(self, task_id: str, *when: Any, **options: Any) -> None:
        self._parts[shard_of(task_id, len(self._parts))].schedule(task_id, *when, **options)

    def cancel(self, task_id: str) -> None:
        self._parts[shard_of(task_id, len(self._parts))].cancel(task_id)

    def close(self) -> None:
        """Send the changes that wait, for up to 1 s for each shard."""
        for part in self._parts:
            part.close()
