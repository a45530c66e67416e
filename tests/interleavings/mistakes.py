"""Mistakes, each planted in the queue's scripts to see that a scenario finds it: ``make explore SELF=1``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from redis.commands.core import Script

from tests.interleavings.queue_world import QueueWorld


class Mistake(NamedTuple):
    """A piece of every script that has it, and what stands there by mistake."""

    right: str
    wrong: str
    #: Only in this script.
    only: str = ""

    def describe(self) -> str:
        where = self.only or "all scripts"
        return (
            f"{where}: {self.wrong!r} for {self.right!r}"
            if self.wrong
            else f"{where}: no {self.right!r}"
        )


MISTAKES = [
    Mistake("string.sub(value, 1, 64) == token then", "true then"),
    Mistake("is_leased(value) and ", ""),
    Mistake("redis.call('ZREM', leased, unpack(held))", "", "ack"),
    Mistake("redis.call('HDEL', tokens, unpack(held))", "", "ack"),
    Mistake("is_leased(kept) and ", "kept and ", "ack_late"),
    Mistake("state.appointment == ARGV[i + 1] and ", "", "ack_late"),
    Mistake(" and state.attempts >= tonumber(ARGV[i + 2])", "", "ack_late"),
    Mistake("redis.call('HDEL', tokens, id)", "", "ack_late"),
    Mistake("now + lease, id", "now, id", "extend"),
    Mistake("state.span = lease", "", "extend"),
    Mistake("if let_go(id, state) then", "do let_go(id, state)"),
    Mistake("redis.call('ZREM', leased, id) if not is_cancelled", "if not is_cancelled"),
    Mistake("redis.call('ZADD', scheduled, state.due, id)", "", "release"),
    Mistake(
        "redis.call('ZADD', scheduled, state.due, id)", "redis.call('ZADD', scheduled, now, id)"
    ),
    Mistake("kept_as(NOBODY, state)", "kept_as(string.sub(kept[at[n]], 1, 64), state)", "release"),
    Mistake("state.attempts = state.attempts + 1", "", "retry"),
    Mistake("state.failures = state.failures + 1", "", "retry"),
    Mistake(
        "state.failures, state.deliveries, state.due = 0, 0, later", "state.due = later", "retry"
    ),
    Mistake("state.span = kind == 'not due' and 0 or", "state.span =", "retry"),
    Mistake("now + delay, id)", "now, id)", "retry"),
    Mistake("redis.call('ZADD', dead, now + since_now_us / 1000, id)", "", "dead_letter"),
    Mistake("redis.call('HSET', letters", "redis.call('HSET', tokens", "dead_letter"),
    Mistake("kept_as(NOBODY, state)", "kept_as(ARGV[2], state)", "dead_letter"),
    Mistake("redis.call('ZREM', dead, id)", ""),
    Mistake("redis.call('HDEL', letters, id) == 1", "redis.call('HDEL', letters, id) >= 0"),
    Mistake("redis.call('ZADD', scheduled, now, id)", "", "requeue"),
    Mistake("'-inf', now, 'WITHSCORES'", "'-inf', '(' .. whole(now), 'WITHSCORES'", "claim"),
    Mistake(
        "'-inf', now, 'LIMIT', 0, MOST_SUSPECTS", "'-inf', now + lease, 'LIMIT', 0, 9", "claim"
    ),
    Mistake("upcoming > now", "upcoming > now + lease", "claim"),
    Mistake("redis.call('ZREM', from, unpack(ids))", "", "claim"),
    Mistake("redis.call('ZADD', claims, now + lease, ARGV[7])", "", "claim"),
    Mistake("if #ARGV > 12 then", "if false then", "claim"),
    Mistake("if not redis.call('ZSCORE', lost_claims, state.token) then", "do", "claim"),
    Mistake("state.deliveries, state.attempts =", "local _, _ =", "claim"),
    Mistake("if lease_end then shorten_late_leases() end", "", "claim"),
    Mistake("if is_paused(ARGV[10]) then return {1, now, -1} end", "", "claim"),
    Mistake("if is_cancelled(state) then\n", "if false then\n", "claim"),
    Mistake("if state.deliveries > 0 or is_cancelled(state) then", "if false then"),
    Mistake("lost[string.sub(kept, 1, 64)]", "true"),
    Mistake("redis.call('EXISTS', resumed) == 1", "false"),
    Mistake(
        "redis.call('ZREM', scheduled, id) == 1", "redis.call('ZSCORE', scheduled, id)", "cancel"
    ),
    Mistake("state.notes = state.notes .. ' cancelled'", "", "cancel"),
    Mistake("redis.call('HEXISTS', letters, id) == 1 then", "false then", "schedule"),
    Mistake("redis.call('HDEL', tokens, id)", "", "schedule"),
    Mistake("redis.call('ZREM', leased, id)", "", "schedule"),
    Mistake("math.ceil(since_now_us / 1000 + delay)", "0", "schedule"),
    Mistake("redis.call('ZSCORE', leased, id)", "false", "restore"),
    Mistake("redis.call('HEXISTS', letters, id) == 1", "false", "restore"),
    Mistake("score and score <= now", "false", "restore"),
    Mistake("ends > now and ", "", "restore"),
    Mistake(" and ends <= now + term", "", "restore"),
    Mistake("turn = 2", "turn = 1", "restore"),
]


@contextmanager
def planted(world: QueueWorld, mistake: Mistake) -> Iterator[None]:
    """Have the world's queues run scripts with this mistake."""
    found = False
    for queue in (world.queue, *world.workers.values()):
        for name, (script, keys) in [*queue._scripts.items()]:
            text = str(script.script, "utf-8")  # type: ignore[arg-type]  # it is made of bytes
            if mistake.right in text and mistake.only in ("", name):
                found = True
                wrong = text.replace(mistake.right, mistake.wrong).encode()
                queue._scripts[name] = Script(world.client, wrong), keys
    assert found, f"no script has {mistake.right!r}"
    yield
