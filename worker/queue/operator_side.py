"""What looks at a queue and repairs it."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import unquote

import redis

from ..errors import UnsafeServer
from ..pauses import Pause
from .formats import id_to_text, ids_to_bytes, slices
from .replies import Letter, Place, Stats, TaskState, WorkerStatus
from .scripted import ScriptedQueue

#: How many dead letters are read at a time, and how many tasks are looked up: four commands for each.
LETTERS = 100
#: How many are removed at a time. Fewer, because each memory page is copied on its first write while Redis
#: rewrites its file.
REMOVED = 50


class OperatorSide(ScriptedQueue):
    """The methods of a `DelayQueue` for those who operate it."""

    def dead(self, limit: int = 100, offset: int = 0) -> list[Letter]:
        """Dead letters, newest first."""
        entries = self._redis.zrevrange(self.keys.dead, offset, offset + limit - 1)
        return self.letters(map(id_to_text, entries))

    def requeue(self, ids: Iterable[str], *, now_ms: int | None = None) -> list[str]:
        """Schedule dead tasks again, due now, with their counts reset. Returns the ids that were dead.

        The tasks keep their appointment, and with it their idempotency key.
        """
        return self._remove_letters("requeue", now_ms, ids)

    def purge(self, ids: Iterable[str]) -> list[str]:
        """Delete dead tasks for good. Returns the ids that were dead."""
        return self._remove_letters("purge", None, ids)

    def _remove_letters(self, script: str, now_ms: int | None, ids: Iterable[str]) -> list[str]:
        found = list[str]()
        for part in slices(ids_to_bytes(ids), size=REMOVED):
            found += map(id_to_text, self._run(script, now_ms, *part))
        return found

    def letters(self, ids: Iterable[str], *, with_payloads: bool = True) -> list[Letter]:
        """The dead letters of these tasks, in the order given; tasks that are not dead are left out.

        Payloads may be large. With ``with_payloads=False`` they are not read, and each is empty.
        """
        found: list[Letter] = []
        for part in slices([*dict.fromkeys(ids_to_bytes(ids))], size=LETTERS):
            stories = self._redis.hmget(self.keys.letters, part)
            payloads = [b""] * len(part)
            if with_payloads:
                payloads = self._redis.hmget(self.keys.payloads, part)
            found += [
                Letter(id_to_text(task_id), payload or b"", json.loads(story))
                for task_id, story, payload in zip(part, stories, payloads, strict=True)
                if story is not None
            ]
        return found

    def newest_dead_ids(self) -> Iterator[list[str]]:
        """The ids of dead tasks, newest first, in pages of 100."""
        passed, last = 0, set[bytes]()
        while entries := self._redis.zrevrange(self.keys.dead, passed, passed + LETTERS - 1):
            # New letters go in front, and push the end of a page into the next one.
            yield [id_to_text(task_id) for task_id in entries if task_id not in last]
            passed, last = passed + len(entries), set(entries)

    def stats(self, *, now_ms: int | None = None) -> Stats:
        """Count the tasks in each place at one moment."""
        reply = self._run("stats", now_ms)
        scheduled, due, within_minute, leased, dead, paused, oldest_dead_age_ms, next_due = reply
        return Stats(
            scheduled=scheduled,
            due=due,
            due_within_minute=within_minute,
            leased=leased,
            dead=dead,
            paused=bool(paused),
            next_due_in_ms=None if next_due is None else max(0, next_due),
            oldest_due_age_ms=max(0, -(next_due or 0)),
            oldest_dead_age_ms=max(0, oldest_dead_age_ms),
        )

    def look_up(self, task_id: str, *, now_ms: int | None = None) -> TaskState | None:
        """Where a task is; None when the queue does not have it. Changes nothing."""
        return self.look_up_many([task_id], now_ms=now_ms).get(task_id)

    def look_up_many(
        self, ids: Iterable[str], *, now_ms: int | None = None
    ) -> dict[str, TaskState]:
        """Where those of these tasks are that the queue has. Changes nothing."""
        found: dict[str, TaskState] = {}
        for part in slices(ids_to_bytes(ids), size=LETTERS):
            reply = self._run("look_up", now_ms, *part)
            for n, task_id in enumerate(part):
                place, *counts, lease, error = reply[8 * n : 8 * n + 8]
                if place:
                    state = TaskState(Place(place.decode()), *counts)
                    texts = {"lease": lease.decode(), "error": unquote(error.decode())}
                    found[id_to_text(task_id)] = state._replace(**texts)
        return found

    def exists(self) -> bool:
        """Whether Redis has anything of this queue."""
        return bool(self._redis.exists(*self.keys.stored()))

    def server_time_ms(self) -> int:
        """The server's clock: ms since the epoch."""
        reply = self._redis.time()
        return int(reply[0] * 1000 + reply[1] // 1000)

    def workers(self) -> list[WorkerStatus]:
        """The known workers, sorted by id. A live one sends a heartbeat every 20 s.

        Workers that have been silent for an hour are removed.
        """
        now_ms = self.server_time_ms()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(self.keys.heard, 0, -1, withscores=True)
            pipe.hgetall(self.keys.workers)
            heard, details = pipe.execute()
        return [
            WorkerStatus(id_to_text(worker), max(0, now_ms - int(at)), json.loads(details[worker]))
            for worker, at in sorted(heard)
            if worker in details
        ]

    def pause(self, reason: str = "", by: str = "") -> None:
        """Make claims return nothing and sweeps do nothing, in every worker, until `resume`.

        It ends if Redis loses it. One that must not is kept with the flow's records: see `Flow.pauses`, and the
        command ``pause``.
        """
        story = {"reason": reason, "by": by, "at_ms": self.server_time_ms()} if reason or by else 1
        self._redis.hset(self.keys.control, "paused", json.dumps(story))
        self.memory.paused = True

    def find_pause(self) -> Pause | None:
        """Why and by whom the queue is paused; None if it is not."""
        kept = self._redis.hget(self.keys.control, "paused")
        if kept is None:
            return None
        story = json.loads(kept)
        if not isinstance(story, dict):
            return Pause()
        at = datetime.fromtimestamp(story["at_ms"] / 1000, UTC)
        return Pause(story["reason"], story["by"], at)

    def resume(self) -> None:
        """End a pause and wake the workers."""
        self._redis.hdel(self.keys.control, "paused")
        self.memory.paused = False
        self.wake()

    def destroy(self) -> None:
        """Delete the queue and everything in it, atomically: every task, dead letter and count.

        Workers that hold a task find its lease lost, and write nothing. The queue can be used again at once:
        a worker that is still running appears in it again, and its sweep restores what the records list as
        waiting.
        """
        self._redis.unlink(*self.keys.stored())

    def wake(self) -> None:
        """Wake every waiting worker. Without permission to publish, they look again at their next slow poll."""
        with suppress(redis.exceptions.NoPermissionError):
            self._redis.publish(self.keys.channel, b"")

    def check_server(self) -> None:
        """Raises UnsafeServer if this server's eviction policy may delete the queue.

        It is unknown where INFO is refused, or does not say. The command ``doctor`` tells that, too.
        """
        with suppress(redis.ResponseError):
            policy = self._redis.info("memory").get("maxmemory_policy")
            if policy is not None and may_evict(policy):
                raise UnsafeServer(
                    f"Its maxmemory-policy is {policy}, which may evict whole queues: "
                    "set it to noeviction."
                )


def may_evict(policy: str) -> bool:
    """Whether a server with this maxmemory-policy may delete a queue."""
    # "volatile-lru" and the like evict only keys with a TTL, which a queue's keys never have.
    return policy != "noeviction" and not policy.startswith("volatile-")
