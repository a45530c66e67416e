"""The hooks by which features attach to the service, and who schedules its checks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from orders.errors import OrderError
from orders.order.domain import CancelledOrder, NewOrder

R = TypeVar("R")
#: What a hook is called around: it returns what this returns.
Call = Callable[[], Any]
Known = Callable[[], bool]
Post = Callable[[Mapping[str, str]], Any]


class CheckScheduler(Protocol):
    """Schedules and cancels the checks of one queue, of deadlines for example. Its methods neither raise nor wait."""

    def schedule(self, id_: str, /, *, delay_ms: float, even_if_dead: bool = False) -> None: ...

    def cancel(self, id_: str, /) -> None: ...


class Hooks:
    """What features attach to the service: lists, so that one feature's hook takes away no other's. Those about what
    happened are called after its commit: they do not raise, and are not called if the process dies before.
    """

    def __init__(self) -> None:
        #: Around placing an order: it may wait, or raise. If it raises TooMuch, a known key gets its order all the same.
        self.around_placing: list[Callable[[NewOrder, Call], Any]] = []
        #: Before a payment, given its client and provider: why it is not recorded, or None.
        self.before_payment: list[Callable[[str, str], OrderError | None]] = []
        #: After an order that was kept has ended, or its deadline has moved, with a connection that has committed that.
        self.after_change: list[Callable[[sa.Connection, str], object]] = []
        #: After events were committed, with their clients and the connection that committed them.
        self.committed: list[Callable[[Iterable[str], sa.Connection], object]] = []
        #: These count events, given their type, a reason and how many. They do not wait.
        self.observers: list[Callable[[str, str, int], object]] = []
        #: After a batch of orders was cancelled at their deadlines by a call that began then, in ns since the epoch.
        self.cancelled: list[Callable[[Sequence[CancelledOrder], int], object]] = []
        #: Around a request that sends a message of a feature: it adds headers, and returns the answer.
        self.around_sending: list[Callable[[Any, Post], Any]] = []
        #: Before a request with a key is served: may raise TooManyRequests.
        self.before_serving: list[Callable[[str], object]] = []
        #: Around checking a credential that is not known yet, given the address that it came from, its endpoint or "",
        #: and whether such a credential exists: may raise TooManyRequests. What raises NotAuthenticated was wrong.
        self.around_checking: list[Callable[[str | None, str, Known, Call], Any]] = []
        #: Around reading a body that came with "keys" or "signatures": may raise ServerBusy.
        self.around_reading: list[Callable[[str, Call], Any]] = []
        #: In a worker, the latest time that the database's clock can show, unless it jumped; None: not known.
        self.clocks: list[Callable[[], datetime | None]] = []
        #: In a worker, about once a second.
        self.ticks: list[Callable[[], object]] = []
        #: Who has long held locks that cancellations may be waiting for.
        self.locked: list[Callable[[sa.Connection], Iterable[object]]] = []
        #: Why an order is unpaid, each cause in a sentence. Raises StorageUnavailable.
        self.why: list[Callable[[str, sa.Engine], Iterable[str]]] = []
        #: What stops everybody's deadlines at the moment, in a sentence, or "". Raises StorageUnavailable.
        self.stopped: list[Callable[[], str]] = []

    def place(self, new: NewOrder, call: Callable[[NewOrder], R]) -> R:
        return _within(self.around_placing, partial(call, new), new)

    def check(
        self,
        call: Callable[[], R],
        address: str | None,
        at: str = "",
        known: Known = lambda: False,
    ) -> R:
        return _within(self.around_checking, call, address, at, known)

    def read(self, call: Callable[[], R], came_with: str) -> R:
        return _within(self.around_reading, call, came_with)

    def refusal(self, client_id: str, provider: str) -> OrderError | None:
        return next(filter(None, (hook(client_id, provider) for hook in self.before_payment)), None)

    def send(self, message: Any, post: Post) -> Any:
        for hook in self.around_sending:
            post = partial(_sent, hook, message, post)
        return post({})

    def causes(self, order_id: str, engine: sa.Engine) -> list[str]:
        """Why an order is unpaid. Raises StorageUnavailable."""
        return [cause for hook in self.why for cause in hook(order_id, engine)]

    def not_after(self) -> datetime | None:
        """The earliest of those that are known."""
        return min(filter(None, (clock() for clock in self.clocks)), default=None)

    def tick(self) -> None:
        for hook in self.ticks:
            hook()

    def tell(self, clients: Iterable[str], connection: sa.Connection) -> None:
        for told in self.committed:
            told(clients, connection)

    def observe(self, event: str, reason: str = "", count: int = 1, /) -> None:
        for observer in self.observers:
            observer(event, reason, count)


def _within(hooks: Sequence[Callable[..., Any]], call: Callable[[], R], *given: Any) -> R:
    """Within all of these; the first is the outermost."""
    for hook in reversed(hooks):
        call = partial(hook, *given, call)
    return call()


def _sent(
    hook: Callable[[Any, Post], Any], message: Any, post: Post, headers: Mapping[str, str]
) -> Any:
    return hook(message, lambda more: post({**headers, **more}))
