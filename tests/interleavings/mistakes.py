"""Mistakes, each planted to see that a search finds it."""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa
from redis.commands.core import Script

from orders.webhooks.turns import Turns, _Ring
from tests.interleavings.queue_world import QueueWorld
from tests.interleavings.rewriting import rewriting
from worker import DelayQueue
from worker.runtime.lane import Station
from worker.runtime.recurring import Recurrence
from worker.runtime.settling import Settler


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
    Mistake("now + lease, id", "now, id", "extend"),
    Mistake("state.span = lease", "", "extend"),
    Mistake("if let_go(id, state) then", "do let_go(id, state)"),
    Mistake("redis.call('ZREM', leased, id) if not is_cancelled", "if not is_cancelled"),
    Mistake("score, state.span, released = state.due, 0, true", "state.span = 0", "retry"),
    Mistake("released = state.due, 0, true", "released = now, 0, true", "retry"),
    Mistake("kept_as(NOBODY, state)", "kept_as(string.sub(kept[at[n]], 1, 64), state)", "retry"),
    Mistake("state.attempts = state.attempts + 1", "", "retry"),
    Mistake("state.failures = state.failures + 1", "", "retry"),
    Mistake(
        "state.failures, state.deliveries, state.due = 0, 0, later", "state.due = later", "retry"
    ),
    Mistake("state.span = kind == 'not due' and 0 or", "state.span =", "retry"),
    Mistake("state.claimed, now + delay", "state.claimed, now", "retry"),
    Mistake("redis.call('ZADD', dead, now + since_now_us / 1000, id)", "", "dead_letter"),
    Mistake("redis.call('HSET', letters", "redis.call('HSET', tokens", "dead_letter"),
    Mistake("kept_as(NOBODY, state)", "kept_as(ARGV[2], state)", "dead_letter"),
    Mistake("redis.call('ZREM', dead, id)", ""),
    Mistake("redis.call('HDEL', letters, id) == 1", "redis.call('HDEL', letters, id) >= 0"),
    Mistake("redis.call('ZADD', scheduled, now, id)", "", "requeue"),
    Mistake("'-inf', now, {}", "'-inf', '(' .. whole(now), {}", "claim"),
    Mistake(
        "'-inf', now, 'LIMIT', 0, MOST_SUSPECTS", "'-inf', now + lease, 'LIMIT', 0, 9", "claim"
    ),
    Mistake("'-inf', now, {}", "'-inf', now + lease, {}", "claim"),
    Mistake("redis.call('ZREM', from, unpack(ids))", "", "claim"),
    Mistake("redis.call('ZADD', claims, now + lease, ARGV[7])", "", "claim"),
    Mistake("if #ARGV > 12 then", "if false then", "claim"),
    Mistake("if not redis.call('ZSCORE', lost_claims, state.token) then", "do", "claim"),
    Mistake("state.deliveries, state.attempts =", "local _, _ =", "claim"),
    Mistake("then shorten_late_leases() end", "then end", "claim"),
    Mistake("if there % 2 == 1 then return {1, now, -1} end", "", "claim"),
    Mistake("if i == 1 and suspect then break end", "", "claim"),
    Mistake("if i == 1 or not suspect then", "do", "claim"),
    Mistake("kept_as(NOBODY, state)", "kept_as(string.sub(kept, 1, 64), state)", "claim"),
    Mistake("if is_cancelled(state) then\n", "if false then\n", "claim"),
    Mistake("if state.deliveries > 0 or is_cancelled(state) then", "if false then"),
    Mistake("lost[string.sub(kept, 1, 64)]", "true"),
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
    Mistake("if not look_only then\n      if payload", "do\n      if payload", "restore"),
    Mistake(" and due <= postponed_at + SLACK_MS", "", "restore"),
    Mistake("postponed_at <= now and ", "", "restore"),
    Mistake("ends > now and ", "", "restore"),
    Mistake(" and ends <= now + term", "", "restore"),
    Mistake("turn = 2", "turn = 1", "restore"),
    Mistake("if late > STALE_MS then", "if false then", "claim"),
    Mistake("until_ms <= now + SPARED_MS and until_ms or 0", "until_ms"),
    Mistake("if leases_spared_until() < now - ms then", "do"),
    Mistake(" and not redis.call('ZSCORE', seeded, id)", "", "seed"),
    Mistake("if ARGV[6] and all_lost", "if ARGV[6]", "seed"),
    Mistake("if not is_past and", "if", "seed"),
    Mistake(" and redis.call('HEXISTS', tokens, id) == 0", "", "seed"),
    Mistake("if valid > now + IN_FORCE_MS then", "if false then", "seed"),
]


class PythonMistake(NamedTuple):
    """A piece of a function."""

    function: Any
    right: str
    wrong: str

    def is_in(self, package: str) -> bool:
        return str(self.function.__module__).startswith(package)

    def describe(self) -> str:
        return f"{self.function.__qualname__}: {self.wrong!r} for {self.right!r}"


IN_PYTHON: list[PythonMistake] = [
    PythonMistake(DelayQueue.claim, "memory.lost_claims[token] = None", "pass"),
    PythonMistake(DelayQueue.claim, "lost = [*memory.lost_claims]", "lost = []"),
    PythonMistake(Settler._send, "self._unconfirmed.append(call)", "pass"),
    PythonMistake(Station._seeded, "self.settler.settle(BatchResult(untouched=claim.tasks))", ""),
    PythonMistake(Recurrence.seed, "if claim.paused or self._is_next(claim):", "if True:"),
    PythonMistake(Turns.take, "None if slow else self._slow.next(may)", "None"),
    PythonMistake(Turns.take, "self._threads // 2", "self._threads"),
    PythonMistake(Turns.take, "self._slow.add(*fast)", "pass"),
    PythonMistake(Turns.end, "self._fast.add(client_id, name)", "pass"),
    PythonMistake(_Ring.next, "if waiting:", "if False:"),
]


class SqlMistake(NamedTuple):
    """A piece of the statements that have it, and where it is found: what a scene begins with, what is locked, and
    who meets; in those of webhooks, in any of their scenarios.
    """

    right: str
    wrong: str
    where: tuple[str, ...] = ()
    #: Only in statements with this.
    only: str = ""

    def describe(self) -> str:
        return f"SQL: {self.wrong!r} for {self.right!r}"


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
    SqlMistake(
        "stops WHERE client_id IS NOT NULL",
        "stops WHERE client_id IS NULL",
        _at("frozen", "unpaid row", "expire, describe"),
    ),
    SqlMistake(
        "WHERE given_back_at IS NULL",
        "WHERE given_back_at IS NOT NULL",
        _at("frozen", "unpaid row", "expire, describe"),
        "order.cancelled",
    ),
    SqlMistake(
        "coalesce(kept_until <= least(statement_timestamp(), $2::timestamptz), true)",
        "true",
        _at("being paid", "unpaid row", "expire, describe"),
    ),
    SqlMistake("FOR UPDATE), ended", "), ended", _at("overdue", "unpaid row", "pay, pay_again")),
    SqlMistake(
        "FROM payment WHERE payment.reason IS NULL",
        "FROM payment",
        _at("overdue", "unpaid row", "pay_too_little, describe"),
    ),
    SqlMistake(
        "orders.total_minor != ",
        "orders.total_minor < ",
        _at("overdue", "unpaid row", "pay, pay"),
    ),
    SqlMistake(
        "reserved = (stock_items.reserved + -excluded.on_hand)",
        "reserved = stock_items.reserved",
        _at("overdue", "stock", "cancel, place_two"),
    ),
    SqlMistake(
        "on_hand = (stock_items.on_hand + -excluded.on_hand)",
        "on_hand = stock_items.on_hand",
        _at("overdue", "stock", "pay, place_two"),
    ),
    SqlMistake(
        "FOR NO KEY UPDATE OF stock_items), basket",
        "), basket",
        _at("overdue", "stock", "place_one, place_one"),
    ),
    SqlMistake(
        "ORDER BY unpaid_orders.order_id FOR UPDATE",
        "ORDER BY unpaid_orders.order_id",
        _at("being paid", "unpaid row", "attempt, fail"),
    ),
    SqlMistake("FOR UPDATE), entry", "), entry", _at("overdue", "unpaid row", "refund, refund")),
    SqlMistake(
        "stock_items.on_hand - stock_items.reserved",
        "stock_items.on_hand",
        _at("overdue", "stock", "place_two, describe"),
    ),
    SqlMistake(
        "FOR UPDATE SKIP LOCKED), extended",
        "), extended",
        _at("frozen", "unpaid row", "extend, thaw"),
    ),
    SqlMistake(
        "NOT (EXISTS (SELECT found.order_id FROM found))",
        "true",
        _at("frozen", "unpaid row", "thaw, describe"),
    ),
    SqlMistake(
        "FOR UPDATE), order_", "), order_", _at("overdue", "attempt's name", "attempt, expire")
    ),
    SqlMistake(
        "<= order_events.expires_at",
        "> order_events.expires_at",
        _at("overdue", "stock", "expire, pay_again"),
    ),
    SqlMistake(
        "orders.currency != ", "orders.currency = ", _at("overdue", "unpaid row", "pay, cancel")
    ),
    SqlMistake(
        "version=(unpaid_orders.version + ",
        "version=(0 + ",
        _at("overdue", "unpaid row", "extend, describe"),
    ),
    SqlMistake(
        "unpaid_orders.expires_at < ",
        "unpaid_orders.expires_at > ",
        _at("frozen", "unpaid row", "thaw, describe"),
        "counted",
    ),
    SqlMistake(
        "unpaid_orders.order_id < ",
        "unpaid_orders.order_id > ",
        _at("frozen", "unpaid row", "thaw, describe"),
        "counted",
    ),
    SqlMistake(
        "CASE WHEN expires_at <= least(",
        "CASE WHEN expires_at IS NOT NULL OR now() <= least(",
        _at("overdue", "unpaid row", "clock_back, expire"),
    ),
]

_OR_NOT = "due_at IS NOT NULL OR now() = "
IN_WEBHOOKS = [
    SqlMistake("webhook_deliveries.due_at = ", f"webhook_deliveries.{_OR_NOT}", only="attempts=("),
    SqlMistake("webhook_deliveries.due_at = ", f"webhook_deliveries.{_OR_NOT}", only="EXISTS"),
    SqlMistake("webhook_deliveries.due_at <= ", "'-infinity'::timestamptz <= "),
    SqlMistake("attempts=(webhook_deliveries.attempts + ", "attempts=(0 + "),
    SqlMistake("earlier.status = 'pending'", "earlier.status = 'dead'"),
    SqlMistake("earlier.subscription_id = ", "earlier.subscription_id != "),
    SqlMistake("earlier.event_id < ", "earlier.event_id > "),
    SqlMistake("earlier.last_attempt_at IS NULL", "true"),
    SqlMistake("next.event_id >= ", "next.event_id < "),
    SqlMistake("next.due_at <= ", "next.due_at > "),
    SqlMistake("webhook_subscriptions.url = ", "webhook_subscriptions.url != "),
    SqlMistake("AND webhook_subscriptions.deleted_at IS NULL", "", only="url = "),
    SqlMistake("AND webhook_subscriptions.paused_at IS NULL", "", only="heads"),
    SqlMistake("ORDER BY webhook_deliveries.status, ", "ORDER BY webhook_deliveries.status DESC, "),
    SqlMistake(
        "DELETE FROM webhook_interests WHERE", "DELETE FROM webhook_interests WHERE false AND"
    ),
    SqlMistake(
        "earlier.event_id < ",
        "earlier.id != webhook_deliveries.id AND earlier.created_at <= webhook_deliveries.created_at AND 0 < ",
    ),
    SqlMistake("CASE WHEN (webhook_deliveries.type = ", "CASE WHEN (webhook_deliveries.type != "),
    SqlMistake("newer.id > ", "newer.id < "),
    SqlMistake("coalesce(webhook_secrets.expires_at > ", "coalesce(webhook_secrets.expires_at < "),
    SqlMistake("SET expires_at=(", "SET expires_at=(interval '9 days' + ", only="webhook_secrets"),
]


@contextmanager
def planted_in_python(mistake: PythonMistake) -> Iterator[None]:
    """Have a function do this instead."""
    function = inspect.unwrap(mistake.function)
    source, scope = textwrap.dedent(inspect.getsource(function)), dict[str, Any]()
    assert mistake.right in source, f"{mistake.function} has no {mistake.right!r}"
    wrong = source.replace(mistake.right, mistake.wrong or "pass")
    exec(wrong, function.__globals__, scope)  # noqa: S102  it is this project's own
    right, function.__code__ = function.__code__, scope[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right


@contextmanager
def planted_in_sql(engine: sa.Engine, mistake: SqlMistake) -> Iterator[list[str]]:
    """Have the engine send this instead. Yields the statements that had it."""
    changed: list[str] = []

    def rewritten(statement: str) -> str:
        text = " ".join(statement.split())
        if mistake.only not in text or mistake.right not in text:
            return statement
        changed.append(text)
        return text.replace(mistake.right, mistake.wrong)

    with rewriting(engine, rewritten):
        yield changed


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
