"""Checks of a queue in Redis: pause, workers, backlog, dead letters, invariants."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from ..errors import Unavailable
from ..findings import Finding, failure, ok, quantity, warning
from ..flow import Flow
from ..pauses import Pause
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Stats, WorkerStatus
from ..queue.shards import ShardedQueue

#: A backlog is reported from here on. Normally tasks are claimed within milliseconds.
LATE_MS = 5_000
#: A call of a handler that takes longer than this, and longer than three leases, may be stuck.
STUCK_SECONDS = 30.0
#: How many of the newest dead letters are read for their reasons.
LETTERS_READ = 100
#: How many problems of a kind are named.
NAMED = 3


def queue_findings(queue: DelayQueue, flow: Flow | None) -> Iterator[Finding]:
    """Everything about a queue. If it has no flow, `Consumer`s may serve it, which send no heartbeats.

    Raises redis.RedisError.
    """
    stats, known = queue.stats(), queue.workers()
    live = [worker for worker in known if not worker.silent]
    pause = _found_pause(queue, flow)
    yield pause_finding(queue.name, pause)
    yield _workers(queue, live, known, flow)
    yield from _stuck(live, flow)
    yield _backlog(queue, stats, pause)
    yield _dead(queue, stats)
    yield _invariants(queue)


def shard_findings(queue: ShardedQueue) -> Iterator[Finding]:
    """Whether shards that are no longer filled are empty. Raises redis.RedisError."""
    for part in queue.parts[queue.shards :]:
        stats = part.stats()
        if left := stats.scheduled + stats.leased + stats.dead:
            summary = f"{part.name} is being emptied: {quantity(left, 'task')} left"
            yield warning("queue.shards", summary, "Keep serving it: see `shards_before`.")
        else:
            yield ok("queue.shards", f"{part.name} is empty, and need not be served any longer")


def _found_pause(queue: DelayQueue, flow: Flow | None) -> Pause | None:
    """A pause in Redis or in the flow's records, which may be unavailable: its probe tells."""
    kept = None
    if flow is not None and flow.pauses is not None:
        with suppress(Unavailable):
            kept = flow.pauses.find()
    return kept or queue.find_pause()


def pause_finding(name: str, pause: Pause | None) -> Finding:
    """Whether a queue is paused, by whom and why."""
    if pause is not None:
        advice = "End the pause with `resume` once its reason is gone."
        return failure("queue.pause", f"{name} is {pause}: nothing is claimed or swept", advice)
    return ok("queue.pause", f"{name} is not paused")


def _workers(
    queue: DelayQueue, live: list[WorkerStatus], known: list[WorkerStatus], flow: Flow | None
) -> Finding:
    down = [worker.id for worker in live if not worker.details.get("up", True)]
    silent = [worker.id for worker in _not_replaced(live, known)]
    if not live:
        gone = f"; silent: {_named(silent)}" if silent else ""
        if flow is None:
            advice = "Start one, unless Consumers take its tasks: those are not listed."
            return warning("queue.workers", f"no worker of {queue.name} is running{gone}", advice)
        advice = "Start one: python -m worker run. If one is running, it cannot reach this Redis: see its log."
        return failure("queue.workers", f"no worker of {queue.name} is running{gone}", advice)
    if down:
        advice = "Something its handler needs is unavailable, so it claims nothing: see its log."
        return failure("queue.workers", f"{queue.name}: {_named(down)} is down", advice)
    if silent:
        advice = "Each has died or cannot reach Redis. The others take over; it is forgotten after an hour."
        return warning(
            "queue.workers", f"{queue.name}: {len(live)} live; silent: {_named(silent)}", advice
        )
    return ok("queue.workers", f"{queue.name}: {len(live)} live")


def _not_replaced(live: list[WorkerStatus], known: list[WorkerStatus]) -> list[WorkerStatus]:
    """Those that fell silent, but for as many as have been started since."""
    ages_ms = sorted(_age_ms(worker) for worker in live)
    silent = sorted(
        (worker for worker in known if worker.silent), key=lambda worker: worker.heard_ms_ago
    )
    return [
        worker
        for worker in silent
        if not (ages_ms and ages_ms[0] <= worker.heard_ms_ago and ages_ms.pop(0) >= 0)
    ]


def _age_ms(worker: WorkerStatus) -> float:
    """How long ago a worker was started, by its own clock and ours."""
    started_at = str(worker.details.get("started_at") or "1970-01-01T00:00:00+00:00")
    passed = datetime.now(UTC) - datetime.fromisoformat(started_at)
    return max(0.0, passed.total_seconds() * 1000)


def _stuck(live: list[WorkerStatus], flow: Flow | None) -> Iterator[Finding]:
    longest = max(STUCK_SECONDS, 3 * flow.lease_seconds) if flow else STUCK_SECONDS
    for worker in live:
        held, oldest = worker.details.get("held"), worker.details.get("oldest_seconds")
        if not (held and oldest):
            continue
        seconds = oldest + worker.heard_ms_ago / 1000
        if seconds > longest:
            yield warning(
                "queue.stuck",
                f"{worker.id} has been in one call of its handler for {seconds:.0f} s, with {_named(held)}",
                "If its tasks do not normally take that long, it is stuck: see what it waits for (py-spy dump), "
                "then restart it. Its tasks are delivered again when its lease ends.",
            )


def _backlog(queue: DelayQueue, stats: Stats, pause: Pause | None) -> Finding:
    if stats.oldest_due_age_ms <= LATE_MS:
        return ok(
            "queue.backlog", f"{queue.name}: {stats.due:,} due, {stats.scheduled:,} scheduled"
        )
    late = f"{stats.oldest_due_age_ms / 1000:,.0f} s"
    advice = "If workers are running and up, start more, or find out what slows their handler down."
    if pause is not None:
        advice = f"It is {pause}. Workers take them after `resume`."
    due = quantity(stats.due, "task")
    summary = f"{queue.name}: {due} due and not claimed, the oldest for {late}"
    return failure("queue.backlog", summary, advice)


def _dead(queue: DelayQueue, stats: Stats) -> Finding:
    if not stats.dead:
        return ok("queue.dead", f"{queue.name}: no dead letters")
    newest = next(queue.newest_dead_ids(), [])[:LETTERS_READ]
    letters = queue.letters(newest, with_payloads=False)
    reasons = Counter(str(letter.story.get("reason")) for letter in letters)
    common = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(NAMED))
    advice = (
        "See `dead list` for the reasons, fix the cause, then `dead requeue` or `dead purge` them."
    )
    summary = f"{queue.name}: {quantity(stats.dead, 'dead letter')}; the newest: {common}"
    return warning("queue.dead", summary, advice)


def _invariants(queue: DelayQueue) -> Finding:
    broken = queue.inspect()
    if not broken:
        return ok(
            "queue.invariants", f"{queue.name}: each task is in one place, with a token if leased"
        )
    advice = (
        "Another program has written these keys. `cancel` such a task; a sweep schedules it again."
    )
    summary = f"{queue.name}: {len(broken)} of a sample: {_named(broken)}"
    return failure("queue.invariants", summary, advice)


def _named(items: list[str]) -> str:
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(items[:NAMED]) + more
