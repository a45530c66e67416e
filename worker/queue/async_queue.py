"""The producer's side of a delay queue, for asyncio."""

from collections.abc import Iterable
from typing import Any

import redis.asyncio
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from ..flow import Due
from .formats import ids_to_bytes, schedule_args, slices, stats_in, task_to_schedule
from .keys import Keys
from .replies import Cancelled, Scheduled, Stats
from .scripted import refuse_decoding
from .scripts import scripts


class AsyncDelayQueue:
    """The queue ``name`` on ``client``, for producers in asyncio::

        async with connect_async("redis://localhost:6379/0") as client:
            emails = AsyncDelayQueue(client, "emails")
            await emails.schedule("welcome-7", delay_ms=50, payload=b"ada@example.org")

    It is the same queue as a `DelayQueue` with that name, and its methods do the same. Any number of
    asyncio tasks of one event loop may share it.

    Every method raises `redis.RedisError` when the server does not do what was asked. The constructor
    raises ValueError for a client that decodes responses.

    If the reply to a call is lost, because of a timeout or because the awaiting asyncio task was
    cancelled, the call may have taken effect, in full or only for its first slices of 500. It is safe to
    repeat until a worker claims the task: the same ``due_at_ms`` changes nothing and returns
    ``UNCHANGED``, and a ``delay_ms`` starts again. Once a worker has claimed the task, scheduling it
    again makes it run again. The same holds for calls that a client with ``reconnect`` repeats by itself.
    """

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, name: str) -> None:
        refuse_decoding(client)
        self.name = name
        self.keys = Keys(name)
        self._redis: Any = client
        self._scripts = {
            file.name: (AsyncScript(client, file.text.encode()), self.keys.of(file))
            for file in scripts()
        }

    async def _run(self, name: str, now_ms: int | None, *args: Any) -> Any:
        script, keys = self._scripts[name]
        sent = (len(keys), *keys, "" if now_ms is None else now_ms, *args)
        try:
            return await self._redis.evalsha(script.sha, *sent)
        except NoScriptError:  # not as redis-py does: see `scripted`
            return await self._redis.eval(script.script, *sent)

    async def schedule(
        self,
        task_id: str,
        due_at_ms: float | None = None,
        payload: bytes = b"",
        *,
        delay_ms: float | None = None,
        only_if_absent: bool = False,
        now_ms: int | None = None,
    ) -> Scheduled:
        """Schedule one task, at a time or after a delay; see `schedule_many`::

            await queue.schedule("order-1", 1_900_000_000_000)
            await queue.schedule("order-2", delay_ms=30_000, payload=b"...")

        Raises ValueError unless exactly one of ``due_at_ms`` and ``delay_ms`` is given.
        """
        task = task_to_schedule(task_id, due_at_ms, payload, delay_ms)
        [answer] = await self.schedule_many([task], only_if_absent=only_if_absent, now_ms=now_ms)
        return answer

    async def schedule_many(
        self,
        tasks: Iterable[tuple[str, float, bytes] | Due],
        *,
        only_if_absent: bool = False,
        now_ms: int | None = None,
    ) -> list[Scheduled]:
        """Schedule tasks, each (id, due_at_ms, payload) or a `Due`; return the result for each.

        Known ids, dead ids and fractions are treated as in `DelayQueue.schedule_many`. Tasks are sent 500
        at a time; the event loop runs other work in between.

        Raises ValueError for an id, a due time or a delay that cannot be stored; then nothing is sent.
        """
        answers = list[Scheduled]()
        for args in schedule_args(self.keys, tasks, only_if_absent=only_if_absent):
            reply = await self._run("schedule", now_ms, *args)
            answers += [Scheduled(each.decode()) for each in reply]
        return answers

    async def cancel(self, task_id: str) -> Cancelled:
        """Take one task off the schedule; see `cancel_many`."""
        [answer] = await self.cancel_many([task_id])
        return answer

    async def cancel_many(self, ids: Iterable[str]) -> list[Cancelled]:
        """Take waiting tasks off the schedule; return what was found for each.

        A task that a worker holds is left to that worker; it is not put back if it is not done.
        """
        answers = list[Cancelled]()
        for part in slices(ids_to_bytes(ids)):
            reply = await self._run("cancel", None, *part)
            answers += [Cancelled(each.decode()) for each in reply]
        return answers

    async def stats(self, *, now_ms: int | None = None) -> Stats:
        """Count the tasks in each place at one moment."""
        return stats_in(await self._run("stats", now_ms))
