"""Mistakes, each planted to see that a search finds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from redis.commands.core import Script

from tests.interleavings.queue_world import QueueWorld
from tests.kit.mistakes import PythonMistake, SqlMistake
from worker import DelayQueue
from worker.runtime.recurring import Recurrence
from worker.runtime.settling import Settler
from worker.runtime.station import Station


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
    Mistake("NOBODY and string.sub(kept, 1, 64) == token then", "NOBODY then"),
    Mistake("if kept and token", "if token"),
    Mistake("redis.call('ZREM', leased, unpack(held))", "", "settle"),
    Mistake("redis.call('HDEL', tokens, unpack(held))", "", "settle"),
    Mistake("now + lease, id)", "now, id)", "extend"),
    Mistake("state.span = lease", "", "extend"),
    Mistake("score, state.span, released = state.due, 0, true", "state.span = 0", "settle"),
    Mistake("released = state.due, 0, true", "released = now, 0, true", "settle"),
    Mistake("kept_as(NOBODY, state)", "kept_as(string.sub(kept, 1, 64), state)", "settle"),
    Mistake("state.attempts + 1, why", "state.attempts, why", "settle"),
    Mistake("state.failures = state.failures + 1", "", "settle"),
    Mistake(
        "state.failures, state.deliveries, state.due = 0, 0, later", "state.due = later", "settle"
    ),
    Mistake("state.span = verb == 'not due' and 0 or", "state.span =", "settle"),
    Mistake("now + delay", "now", "settle"),
    Mistake("redis.call('ZADD', dead, now + since_now_us / 1000, id)", "", "settle"),
    Mistake("redis.call('HSET', letters", "redis.call('HSET', tokens", "settle"),
    Mistake("kept_as(NOBODY, attempts", "kept_as(string.sub(kept, 1, 64), attempts", "settle"),
    Mistake("redis.call('ZREM', dead, id)", ""),
    Mistake("redis.call('HDEL', letters, id) == 1", "redis.call('HDEL', letters, id) >= 0"),
    Mistake("redis.call('ZADD', scheduled, now, id)", "", "requeue"),
    Mistake("tonumber(due[2 * i]) > now then", "tonumber(due[2 * i]) >= now then", "claim"),
    Mistake("(#ids == 0 or kept) and", "kept and", "claim"),
    Mistake("(#ids == 0 or kept) and", "#ids == 0 and", "claim"),
    Mistake("'-inf', now, 'LIMIT', 0, MOST)", "'-inf', now + ARGV[3])", "redeliver"),
    Mistake("redis.call('ZREM', leased, id)\n", "", "redeliver"),
    Mistake("kept_as(NOBODY, state)", "kept_as(string.rep('1', 64), state)", "redeliver"),
    Mistake("state.deliveries + 1, state", "state.deliveries, state", "redeliver"),
    Mistake("if shorten_lease(id) then", "if false then", "redeliver"),
    Mistake("if now > tonumber(ARGV[4]) then return end", "", "redeliver"),
    Mistake(
        "state.span, state.deliveries, state.attempts = 0, ",
        "state.deliveries, state.attempts = ",
        "redeliver",
    ),
    Mistake("if #ids < few then", "do", "redeliver"),
    Mistake("elseif must_wait then", "elseif false then", "redeliver"),
    Mistake("if last and is_alone then", "if false then", "redeliver"),
    Mistake("(next_due() or now) - 1", "now + 1", "redeliver"),
    Mistake("'-inf', now + ahead", "'-inf', now + lease", "claim"),
    Mistake("redis.call('ZREMRANGEBYRANK', scheduled, rank, rank + #ids - 1)", "", "claim"),
    Mistake("rank + #ids - 1", "rank + #ids", "claim"),
    Mistake("redis.call('ZADD', claims, ends, claimer)", "", "claim"),
    Mistake("string.sub(kept, 1, 64) == ARGV[2] then", "true then", "give_back"),
    Mistake("redis.call('ZREM', leased, id)\n", "", "give_back"),
    Mistake("scheduled, state.due, id)", "scheduled, now, id)", "give_back"),
    Mistake("state.span = 0", "", "give_back"),
    Mistake("kept_as(NOBODY, state)", "kept_as(ARGV[2], state)", "give_back"),
    Mistake("not says('spares') and tonumber(", "tonumber(", "claim"),
    Mistake("not says('redelivered') and next_lease_end() <= now", "false", "claim"),
    Mistake("'paused') == 1 then", "'paused') == 2 then", "claim"),
    Mistake("or #ids == together[kind]", "", "claim"),
    Mistake("of_kind ~= kind or ", "", "claim"),
    Mistake("put_off(scheduled, all[i])", "", "claim"),
    Mistake("state.span = ALONE_MS", "", "claim"),
    Mistake("of_kind == 2 and lone_suspect_is_new() then", "false then", "claim"),
    Mistake(
        "redis.call('ZREM', scheduled, id) == 1", "redis.call('ZSCORE', scheduled, id)", "cancel"
    ),
    Mistake("redis.call('ZREM', leased, id) == 1", "redis.call('ZSCORE', leased, id)", "cancel"),
    Mistake("redis.call('HDEL', tokens, unpack(removed))", "", "cancel"),
    Mistake("redis.call('HEXISTS', letters, id) == 1 then", "false then", "schedule"),
    Mistake("redis.call('HDEL', tokens, id)", "", "schedule"),
    Mistake("redis.call('ZREM', leased, id)", "", "schedule"),
    Mistake("math.ceil(since_now_us / 1000 + delay)", "0", "schedule"),
    Mistake("redis.call('ZSCORE', leased, id)", "false", "restore"),
    Mistake("redis.call('HEXISTS', letters, id) == 0", "true", "restore"),
    Mistake("score and score <= now", "false", "restore"),
    Mistake("if not look_only then\n      if payload", "do\n      if payload", "restore"),
    Mistake(" and due <= claimed_at + SLACK_MS", "", "restore"),
    Mistake("claimed_at <= now and ", "", "restore"),
    Mistake("ends > now and ", "", "restore"),
    Mistake(" and ends <= now + term", "", "restore"),
    Mistake("turn = 2", "turn = 1", "restore"),
    Mistake("if reply_by and now > reply_by then", "if false then", "claim"),
    Mistake(" and not redis.call('ZSCORE', seeded, id)", "", "seed"),
    Mistake("if ARGV[6] and all_lost", "if ARGV[6]", "seed"),
    Mistake("if not is_past and", "if", "seed"),
    Mistake(" and redis.call('HEXISTS', tokens, id) == 0", "", "seed"),
    Mistake("if valid > now + IN_FORCE_MS then", "if false then", "seed"),
]


IN_PYTHON: list[PythonMistake] = [
    PythonMistake(DelayQueue._claiming, "memory.unanswered = token", "pass"),
    PythonMistake(DelayQueue._claiming, "server_ms is None or", "server_ms is not None and"),
    PythonMistake(DelayQueue._claiming, "now < 1000 * asked_at + server_ms - STALE_MS", "False"),
    PythonMistake(Station.claims_next, " or self.queue.memory.unanswered", ""),
    PythonMistake(DelayQueue._spares_ms, "memory.spares_until =", "_ ="),
    PythonMistake(Settler._send, "self._unconfirmed += ", "_ = "),
    PythonMistake(Station._claim, "if ask is None:", "if True:"),
    PythonMistake(Station._seeded, "self.settler.settle(BatchResult(untouched=claim.tasks))", ""),
    PythonMistake(Recurrence.seed, "if claim.paused:", "if True:"),
]


def _at(begin: str, gate: str, meeting: str) -> tuple[str, ...]:
    return begin, f"the {gate}", *meeting.split(", ")


IN_SQL: list[SqlMistake] = [
    SqlMistake(
        "CASE WHEN expires_at <= least(",
        "CASE WHEN expires_at IS NOT NULL OR now() <= least(",
        _at("overdue", "unpaid row", "extend, expire"),
    ),
    SqlMistake(
        "FOR UPDATE SKIP LOCKED ), cancelled",
        "), cancelled",
        _at("overdue", "unpaid row", "extend, expire"),
    ),
    # <freezes>
    SqlMistake(
        "stops WHERE client_id IS NOT NULL",
        "stops WHERE client_id IS NULL",
        _at("frozen", "unpaid row", "expire, describe"),
    ),
    SqlMistake(
        "ends_at FROM opened",
        "ends_at FROM opened WHERE false",
        _at("frozen", "unpaid row", "expire, describe"),
    ),
    SqlMistake(
        "FROM counted WHERE given_back_at IS NOT NULL",
        "FROM counted",
        _at("frozen", "unpaid row", "thaw, describe"),
    ),
    # </freezes>
    # <providers>
    SqlMistake(
        "coalesce(kept_until <= least(statement_timestamp(), $2::timestamptz), true)",
        "true",
        _at("being paid", "unpaid row", "expire, describe"),
    ),
    # </providers>
    SqlMistake("FOR UPDATE ), ended", "), ended", _at("overdue", "unpaid row", "pay, pay_again")),
    SqlMistake(
        "FROM payment WHERE reason IS NULL",
        "FROM payment",
        _at("overdue", "unpaid row", "pay_too_little, describe"),
    ),
    SqlMistake(
        "WHEN total_minor <> ",
        "WHEN total_minor < ",
        _at("overdue", "unpaid row", "pay, pay"),
    ),
    SqlMistake(
        "reserved = stock_items.reserved - excluded.reserved",
        "reserved = stock_items.reserved",
        _at("overdue", "stock", "cancel, place_two"),
    ),
    SqlMistake(
        "on_hand = stock_items.on_hand - excluded.on_hand",
        "on_hand = stock_items.on_hand",
        _at("overdue", "stock", "pay, place_two"),
    ),
    SqlMistake(
        "FOR NO KEY UPDATE OF stock_items ), basket",
        "), basket",
        _at("overdue", "stock", "place_one, place_one"),
    ),
    # <providers>
    SqlMistake(
        "ORDER BY order_id FOR UPDATE",
        "ORDER BY order_id",
        _at("being paid", "unpaid row", "attempt, fail"),
        "SELECT order_id FROM payment_attempts",
    ),
    # </providers>
    SqlMistake("FOR UPDATE ), entry", "), entry", _at("overdue", "unpaid row", "refund, refund")),
    SqlMistake(
        "on_hand - reserved - quantity AS spare",
        "on_hand - quantity AS spare",
        _at("overdue", "stock", "place_two, describe"),
    ),
    # <freezes>
    SqlMistake(
        "FOR UPDATE SKIP LOCKED ), extended",
        "), extended",
        _at("frozen", "unpaid row", "extend, thaw"),
    ),
    SqlMistake(
        "NOT EXISTS (SELECT FROM found)",
        "true",
        _at("frozen", "unpaid row", "thaw, describe"),
    ),
    # </freezes>
    # <providers>
    SqlMistake(
        "FOR UPDATE ), found", "), found", _at("overdue", "attempt's name", "attempt, expire")
    ),
    # </providers>
    SqlMistake(
        "::timestamptz <= expires_at",
        "::timestamptz > expires_at",
        _at("overdue", "stock", "expire, pay_again"),
    ),
    SqlMistake("OR currency <> ", "OR currency = ", _at("overdue", "unpaid row", "pay, cancel")),
    SqlMistake(
        "version = version + 1",
        "version = 1",
        _at("overdue", "unpaid row", "extend, describe"),
    ),
    # <freezes>
    SqlMistake(
        "expires_at < (SELECT deadline",
        "expires_at > (SELECT deadline",
        _at("frozen", "unpaid row", "thaw, describe"),
    ),
    SqlMistake(
        "order_id < (SELECT next_id",
        "order_id > (SELECT next_id",
        _at("frozen", "unpaid row", "thaw, describe"),
    ),
    # </freezes>
    SqlMistake(
        "CASE WHEN expires_at <= least(",
        "CASE WHEN expires_at IS NOT NULL OR now() <= least(",
        _at("overdue", "unpaid row", "clock_back, expire"),
    ),
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
