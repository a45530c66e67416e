"""Two features that attach to the same hook: neither takes the other's away."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from orders.errors import OrderError
from orders.hooks import Hooks, Post

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_payment_is_refused_by_whichever_hook_refuses_it() -> None:
    hooks, first, second = Hooks(), OrderError("first"), OrderError("second")
    hooks.before_payment += [
        lambda _, provider: first if provider == "a" else None,
        lambda _, provider: second if provider in "ab" else None,
    ]
    assert [hooks.refusal("client", each) for each in "abc"] == [first, second, None]


def test_the_earliest_clock_that_is_known_counts() -> None:
    hooks = Hooks()
    assert hooks.not_after() is None
    hooks.clocks += [lambda: None, lambda: NOON, lambda: NOON - timedelta(hours=1)]
    assert hooks.not_after() == NOON - timedelta(hours=1)


def test_a_message_is_sent_with_the_headers_of_all_hooks() -> None:
    def adding(name: str) -> Any:
        def around(message: str, post: Post) -> Any:
            return f"{name}({post({name: message})})"

        return around

    def post(headers: Mapping[str, str]) -> str:
        return ",".join(sorted(headers))

    hooks = Hooks()
    assert hooks.send("m", post) == ""
    hooks.around_sending += [adding("a"), adding("b")]
    assert hooks.send("m", post) == "b(a(a,b))"
