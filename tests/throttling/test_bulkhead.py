"""One slow thing takes a few threads, never all, and a busy one refuses nobody."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from devtools.processes import wait_until
from orders.config import Settings
from orders.errors import OrderError
from orders.features.throttling.bulkhead import Bulkhead
from orders.features.throttling.errors import StockBusy
from orders.features.throttling.feature import Receiving
from orders.hooks import Call, Hooks
from orders.order.domain import NewOrder
from orders.wiring import bootstrap

#: Nobody here waits for so long.
FOR_EVER = 1e6


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def occupied(bulkhead: Bulkhead, *baskets: set[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for basket in baskets:
            stack.enter_context(bulkhead.enter(basket))
        yield


def waits(bulkhead: Bulkhead) -> bool:
    return bulkhead._waiting > 0


def test_a_stalled_compartment_refuses_at_once_and_others_let_in() -> None:
    clock = Clock()
    bulkhead = Bulkhead(2, StockBusy, patience_seconds=5, clock=clock)
    with occupied(bulkhead, {"tea"}, {"tea", "mug"}):
        clock.now = 5
        with pytest.raises(StockBusy), bulkhead.enter({"tea"}):
            pass
        with pytest.raises(StockBusy), bulkhead.enter({"cup", "tea"}):
            pass
        with bulkhead.enter({"mug", "cup"}):
            pass
    with bulkhead.enter({"tea", "mug", "cup"}):
        pass
    assert not bulkhead._inside
    assert not bulkhead._moved


def test_what_fails_inside_leaves_too() -> None:
    bulkhead = Bulkhead(1, StockBusy, patience_seconds=0)
    with pytest.raises(ZeroDivisionError), bulkhead.enter({"tea"}):
        raise ZeroDivisionError
    with bulkhead.enter({"tea"}):
        pass


def test_whoever_leaves_lets_the_next_one_in() -> None:
    bulkhead = Bulkhead(1, StockBusy, patience_seconds=FOR_EVER, longest_wait_seconds=FOR_EVER)
    with ThreadPoolExecutor(1) as pool:
        with bulkhead.enter({"tea"}):
            entered: Future[None] = pool.submit(_enter, bulkhead)
            wait_until(lambda: waits(bulkhead), "the other to wait")
            assert not entered.done()
        entered.result(timeout=60)


def test_patience_counts_from_the_first_if_nobody_has_left() -> None:
    clock = Clock()
    bulkhead = Bulkhead(1, StockBusy, patience_seconds=5, clock=clock)
    clock.now = 3
    with occupied(bulkhead, {"tea"}):
        clock.now = 8
        with pytest.raises(StockBusy):
            _enter(bulkhead)
        clock.now = 7.999
        with pytest.raises(TimeoutError):  # it would have waited
            _enter_impatiently(bulkhead)


def test_patience_counts_from_when_somebody_last_left() -> None:
    clock = Clock()
    bulkhead = Bulkhead(2, StockBusy, patience_seconds=5, clock=clock)
    with occupied(bulkhead, {"tea"}):
        clock.now = 4
        with occupied(bulkhead, {"tea"}):
            pass
        with occupied(bulkhead, {"tea"}):
            clock.now = 9
            with pytest.raises(StockBusy):
                _enter(bulkhead)
            clock.now = 8.999
            with pytest.raises(TimeoutError):  # it would have waited
                _enter_impatiently(bulkhead)


def test_no_more_than_allowed_are_inside_however_many_come() -> None:
    bulkhead = Bulkhead(2, StockBusy, patience_seconds=FOR_EVER, longest_wait_seconds=FOR_EVER)
    lock, inside, most = threading.Lock(), 0, 0

    def work(turn: int) -> None:
        nonlocal inside, most
        with bulkhead.enter({"tea", f"other-{turn % 3}"}):
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1

    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(work, range(2000)))) == 2000
    assert most <= 2


def test_an_order_that_was_refused_takes_no_place() -> None:
    bulkhead, refusal, hooks = Bulkhead(1, StockBusy, patience_seconds=0), OrderError(), Hooks()

    def refuse(_new: NewOrder, _place: Call) -> Any:
        raise refusal

    def place(new: NewOrder, call: Call) -> Any:
        with bulkhead.enter(new.quantities):
            return call()

    hooks.around_placing += [refuse, place]
    new = NewOrder(client_id="c", key="k", fingerprint="f", quantities={"tea": 1})
    with bulkhead.enter({"tea"}), pytest.raises(OrderError) as found:
        hooks.place(new, lambda _new: None)
    assert found.value is refusal


def _enter(bulkhead: Bulkhead) -> None:
    with bulkhead.enter({"tea"}):
        pass


def _enter_impatiently(bulkhead: Bulkhead) -> None:
    def refuse(_timeout: float) -> bool:
        raise TimeoutError

    bulkhead._left.wait = refuse  # type: ignore[method-assign, assignment]
    _enter(bulkhead)


@pytest.mark.parametrize("threads", [4, 5, 7, 8, 10, 40])
def test_slow_senders_of_every_kind_leave_a_thread(threads: int) -> None:
    services = bootstrap(
        Settings.of(
            database_url="postgresql+psycopg:///never-opened",
            redis_url="redis://127.0.0.1:1",
            database_pool_size=threads,
        )
    )
    assert sum(kind._most for kind in services[Receiving]) < threads
