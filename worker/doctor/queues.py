"""Checks of a queue in Redis: pause, workers, backlog, dead letters."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from ..errors import Unavailable
from ..findings import Finding, failure, ok, quantity, warning
from ..flow import Flow
from ..pauses import Pause
from ..queue.delay_queue import DelayQueue

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
    pause = None
    if flow is not None and flow.pauses is not None:
        with suppress(Unavailable):  # a moment after its probe passed
            pause = flow.pauses.find()
    pause = pause or queue.find_pause()
    yield pause_finding(queue.name, pause)
    yield from _workers(queue, flow)
    yield from _tasks(queue, pause)


def pause_finding(name: str, pause: Pause | None) -> Finding:
    """Whether a queue is paused, by whom and why."""
    if pause is not None:
        advice = "End the pause with `resume` once its reason is gone."
        return failure("queue.pause", f"{name} is {pause}: nothing is claimed or swept", advice)
    return ok("queue.pause", f"{name} is not paused")


def _workers(queue: DelayQueue, flow: Flow | None) -> Iterator[Finding]:
    known = queue.workers()
    live = [worker for worker in known if not worker.silent]
    down = [worker.id for worker in live if not worker.details.get("up", True)]
    silent = [worker.id for worker in known if worker.silent]
    check, gone = "queue.workers", f"; silent: {_named(silent)}" if silent else ""
    if not live and flow is None:
        advice = "Start one, unless Consumers take its tasks: those are not listed."
        yield warning(check, f"no worker of {queue.name} is running{gone}", advice)
    elif not live:
        advice = "Start one: python -m worker run. If one is running, it cannot reach this Redis: see its log."
        yield failure(check, f"no worker of {queue.name} is running{gone}", advice)
    elif down:
        advice = "Something its handler needs is unavailable, so it claims nothing: see its log."
        yield failure(check, f"{queue.name}: {_named(down)} is down", advice)
    elif silent:
        advice = "Each has died or cannot reach Redis. The others take over; it is forgotten after an hour."
        yield warning(check, f"{queue.name}: {len(live)} live{gone}", advice)
    else:
        yield ok(check, f"{queue.name}: {len(live)} live")
    longest = max(STUCK_SECONDS, 3 * flow.lease_seconds) if flow else STUCK_SECONDS
    for worker in live:
        held, oldest = worker.details.get("held"), worker.details.get("oldest_seconds")
        seconds = (oldest or 0) + worker.heard_ms_ago / 1000
        if held and oldest and seconds > longest:
            yield warning(
                "queue.stuck",
                f"{worker.id} has been in one call of its handler for {seconds:.0f} s, with {_named(held)}",
                "If its tasks do not normally take that long, it is stuck: see what it waits for (py-spy dump), "
                "then restart it. Its tasks are delivered again when its lease ends.",
            )


def _tasks(queue: DelayQueue, pause: Pause | None) -> Iterator[Finding]:
    name, stats = queue.name, queue.stats()
    if stats.oldest_due_age_ms <= LATE_MS:
        yield ok("queue.backlog", f"{name}: {stats.due:,} due, {stats.scheduled:,} scheduled")
    else:
        late = f"the oldest for {stats.oldest_due_age_ms / 1000:,.0f} s"
        advice = (
            "If workers are running and up, start more, or find out what slows their handler down."
        )
        if pause is not None:
            advice = f"It is {pause}. Workers take them after `resume`."
        due = quantity(stats.due, "task")
        yield failure("queue.backlog", f"{name}: {due} due and not claimed, {late}", advice)
    if not stats.dead:
        yield ok("queue.dead", f"{name}: no dead letters")
    else:
        newest = next(queue.newest_dead_ids(), [])[:LETTERS_READ]
        letters = queue.letters(newest, with_payloads=False)
        reasons = Counter(str(letter.story.get("reason")) for letter in letters)
        common = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(NAMED))
        summary = f"{name}: {quantity(stats.dead, 'dead letter')}; the newest: {common}"
        advice = "See `dead list` for the reasons, fix the cause, then `dead requeue` or `dead purge` them."
        yield warning("queue.dead", summary, advice)


def _named(items: list[str]) -> str:
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(items[:NAMED]) + more
