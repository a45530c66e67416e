"""Two or three of the orders' operations on one order, stepped at their locks."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import permutations
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import uuid4

import redis
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.clients.service import Clients
from orders.config import Settings
from orders.db.tables import order_events, order_items, payments, stock_items, unpaid_orders
from orders.errors import OrderError
from orders.features.freezes.service import Freezes  # <freezes/>
from orders.features.freezes.tables import freezes  # <freezes/>

# <providers>
from orders.features.providers.attempts.domain import DueAttempt
from orders.features.providers.attempts.flow import attempt_flow
from orders.features.providers.attempts.gateway import Reply
from orders.features.providers.attempts.service import Attempts
from orders.features.providers.schemas import OtherReply, PaidReply
from orders.features.providers.service import Providers
from orders.features.providers.tables import payment_attempts

# </providers>
from orders.hooks import Hooks
from orders.order.domain import Order, Timeouts
from orders.order.payments import PaymentResult
from orders.order.service import OrderService
from tests.freezes.giving import give_back  # <freezes/>
from tests.kit.expiring import expire_now
from tests.kit.moments import later, now
from tests.kit.rewriting import rewriting, with_clock
from tests.kit.shop import Shop, client_id
from tests.kit.states import states, status
from worker import Retry, Task

#: Before any deadline.
IN_TIME = datetime(2026, 1, 1, tzinfo=UTC)


# <providers>
class Died(BaseException):
    """The process is gone."""


class Mortal(Attempts):
    """The threads in ``dying`` die before they settle an attempt."""

    dying: ClassVar[set[int]] = set()

    def settle(self, *args: Any) -> None:
        if threading.get_ident() in self.dying:
            raise Died
        super().settle(*args)


class Wired(SimpleNamespace):
    """What the flow of attempts works with."""

    def __getitem__(self, _: type) -> Any:
        return self.attempts


# </providers>


class Scene:
    """An overdue order for one of a SKU's two pieces, with a payment of too little; ``begin`` names what else."""

    #: By how many seconds the database's clock was set back.
    set_back: ClassVar[int] = 0

    def __init__(self, shop: Shop, begin: str = "overdue") -> None:
        #: Whether moments tell nothing, because the clock was set back; and by how much it is.
        self.was_set_back, Scene.set_back = False, 0
        self.client = uuid4().hex
        clients = Clients(shop.engine)
        own = client_id(clients, clients.create_key(self.client, ["orders"]))
        self.attempts = Mortal(shop.engine, shop.scheduler, shop.scheduler, 1800)  # <providers/>
        hooks = Hooks()
        hooks.after_change.append(self.attempts.end)  # <providers/>
        orders = OrderService(shop.engine, shop.scheduler, Timeouts(1800, 1, 86_400), hooks)
        self.shop = shop = replace(shop, client=own, service=orders)
        # <providers>
        # Its attempts at this provider are asked about.
        Providers(shop.engine).add(self.client, "bank", "https://bank.example/close")
        # </providers>
        self.sku = uuid4().hex
        shop.stock(self.sku, on_hand=2)
        self.order = shop.basket({self.sku: 1})
        # <freezes>
        self.freezes = Freezes(shop.engine)
        self.freeze_id = ""
        # </freezes>
        self.is_second = begin == "being paid"
        self.paid = self.pay_with("too little", 1).payment
        # <providers>
        if self.is_second:
            self.attempt("first")
        # </providers>
        # <freezes>
        if begin == "frozen":
            self.freeze()
            [self.freeze_id] = self.held_by()
        # </freezes>
        shop.expire_in(-1, self.order)
        # <providers>
        with shop.engine.begin() as connection:
            ended = sa.update(payment_attempts).values(ends_at=later(now(), "ms"))
            connection.execute(ended, {"ms": -1})
        #: What the provider answers when it is asked to close an attempt.
        self.reply: Reply = OtherReply(outcome="closed")
        settings = Settings.of(database_url="postgresql://nowhere/", redis_url="redis://nowhere")
        services: Any = Wired(
            settings=settings,
            engine=shop.engine,
            redis=redis.Redis(),
            hooks=Hooks(),
            orders=shop.service,
            check_ready=lambda: None,
            attempts=self.attempts,
        )
        self.closing = attempt_flow(services, lambda *_: self.answer)
        # </providers>
        #: Whether its deadline is moved by hand.
        self.is_settling = False
        #: The threads that have skipped the order, because it is locked, and look again.
        self.skipping: set[int] = set()

    def until_done(self, is_done: Callable[[], bool]) -> None:
        """Like the worker, which looks again at what was locked."""
        until = time.monotonic() + 60
        while not is_done():
            self.skipping.add(threading.get_ident())
            assert time.monotonic() < until

    def named(self, reference: str) -> dict[str, Any]:
        return {"provider": "bank", "reference": f"{self.sku} {reference}"}

    def pay_with(self, reference: str, amount: int, **when: Any) -> PaymentResult:
        return self.shop.service.pay(
            self.shop.client,
            self.order.id,
            **self.named(reference),
            amount_minor=amount,
            currency="EUR",
            **when,
        )

    def pay(self) -> str:
        payment = self.pay_with("first", self.order.total_minor).payment
        return f"{payment.status} {payment.reason}"

    def pay_again(self) -> str:
        """By another way, in time by its provider's clock."""
        payment = self.pay_with("second", self.order.total_minor, paid_at=IN_TIME).payment
        return f"{payment.status} {payment.reason}"

    def pay_too_little(self) -> str:
        return str(self.pay_with("less", 1).payment.reason)

    def refund(self) -> str:
        paid = self.shop.service.refund(self.shop.client, self.paid.id, uuid4().hex)
        return str(paid.payment.status)

    def cancel(self) -> str:
        return str(self.shop.service.cancel(self.shop.client, self.order.id).status)

    def expire(self) -> None:
        service = self.shop.service
        self.until_done(lambda: all(ms > 0 for ms in expire_now(service, [self.order.id]).values()))

    def extend(self) -> str:
        later = datetime.now(UTC) + timedelta(minutes=5)
        changes: Any = {"expires_at": later, "versions": None}
        return str(self.shop.service.extend(self.shop.client, self.order.id, **changes).version)

    def describe(self) -> str:
        changes = {"client_reference": "new"}
        args: Any = (self.shop.client, self.order.id, changes)
        return str(self.shop.service.describe(*args, versions=None).client_reference)

    def place_two(self) -> str:
        return str(self.shop.basket({self.sku: 2}).status)

    def place_one(self) -> str:
        return str(self.shop.basket({self.sku: 1}).status)

    # <freezes>
    def freeze(self) -> None:
        values: Any = {"reason": "a test", "by": "a test", "seconds": 60, "give_back_seconds": 60}
        self.freezes.open(self.client, **values)

    def held_by(self) -> list[str]:
        with self.shop.engine.connect() as connection:
            own = {"client_id": self.shop.client, "given_back_at": None}
            found = sa.select(freezes.c.id).filter_by(**own)
            return [*connection.scalars(found)]

    def thaw(self, freeze_id: str = "") -> None:
        """End the freeze that the scene began with, and give back: the deadline moves."""
        freeze_id = freeze_id or self.freeze_id
        if not freeze_id:
            return
        self.freezes.thaw(freeze_id, by="a test")

        def gives_back() -> bool:
            extended, freeze = give_back(self.shop, freeze_id)
            self.check_stops()
            return not extended and (freeze is None or freeze.ms is None or freeze.ms > 0)

        self.until_done(gives_back)

    def check_stops(self) -> None:
        """What stops orders is each freeze that has not given back, at every moment."""
        with self.shop.engine.connect() as connection:
            wrong = connection.exec_driver_sql(
                "SELECT id FROM (SELECT id FROM freezes WHERE given_back_at IS NULL) AS in_force"
                " FULL JOIN stops USING (id) WHERE in_force.id IS NULL OR stops.id IS NULL"
            )
            assert wrong.first() is None, "a freeze and what it stops differ"

    # </freezes>
    # <providers>
    def attempt(self, reference: str = "") -> str:
        """Open an attempt, or a second one."""
        names = self.named(reference or ("second" if self.is_second else "first"))
        opened = self.attempts.open(self.shop.client, self.order.id, **names, seconds=60)
        return str(opened.attempt.outcome)

    def fail(self) -> str:
        return str(self.attempts.fail(self.shop.client, self.order.id, **self.named("first")))

    def answer(self, attempt: DueAttempt) -> Reply:
        """What its provider answers."""
        if isinstance(self.reply, PaidReply):
            return self.reply.model_copy(update={"reference": attempt.reference})
        return self.reply

    def close(self, ask_about: str = "first") -> Reply:
        """Settle an attempt, whose provider is asked first."""
        attempts = self.attempts.of_order(self.order.id, page_size=9)
        tasks = [_task(each.id) for each in attempts if each.reference.endswith(ask_about)]

        def settles() -> bool:
            outcomes = self.closing.handler(tasks) or {}
            return not any(type(each) is Retry for each in outcomes.values())

        self.until_done(settles)
        return self.reply

    def close_as_paid(self) -> Reply:
        self.reply = PaidReply(
            outcome="paid",
            provider="bank",
            order_id=self.order.id,
            reference="any",
            amount_minor=self.order.total_minor,
            currency="EUR",
        )
        return self.close()

    def die_while_closing(self) -> None:
        """Once the provider was asked, and its money is recorded."""
        self.attempts.dying.add(threading.get_ident())
        try:
            self.close_as_paid()
        except Died:
            pass
        finally:
            self.attempts.dying.discard(threading.get_ident())

    # </providers>
    def clock_back(self) -> None:
        """By a minute, for whatever begins from now on."""
        self.was_set_back = True
        Scene.set_back += 60

    def outcome(self) -> tuple[Any, ...]:
        """What became of the order, its money and its stock. Raises AssertionError if that is wrong in itself."""
        order = self.shop.service.order(self.shop.client, self.order.id)
        of_order = {"order_id": self.order.id}
        tries: Sequence[Any] = ()
        held: Sequence[Any] = ()
        with self.shop.engine.begin() as connection:
            stock = connection.execute(sa.select(stock_items).filter_by(sku=self.sku)).one()
            paid = connection.execute(
                sa.select(payments).filter_by(**of_order).order_by(payments.c.reference)
            ).all()
            # <providers>
            tries = connection.execute(
                sa.select(payment_attempts)
                .filter_by(**of_order)
                .order_by(payment_attempts.c.reference)
            ).all()
            # </providers>
            events = connection.execute(
                sa.select(order_events).filter_by(**of_order).order_by(order_events.c.id)
            ).all()
            # <freezes>
            held = connection.execute(
                sa.select(freezes).filter_by(client_id=self.shop.client)
            ).all()
            # </freezes>
            until = connection.scalar(sa.select(unpaid_orders.c.kept_until).filter_by(**of_order))
            amounts = connection.execute(
                sa.select(status, sa.func.sum(order_items.c.quantity))
                .join(order_items, states.c.order_id == order_items.c.order_id)
                .filter(order_items.c.sku == self.sku)
                .group_by(status)
            )
            pieces = {row.status: row[1] for row in amounts}
        self.check_stops()  # <freezes/>
        endings = [each for each in events if each.type in ("order.paid", "order.cancelled")]
        assert len(endings) == (order.status != "unpaid"), "it has not ended once"
        applied = [each for each in paid if each.status == "applied"]
        assert len(applied) == (order.status == "paid"), "it is paid, or its money is due back"
        assert all(each.amount_minor == order.total_minor for each in applied), "too little"
        changes = sum(event.type.startswith("order.") for event in events[1:])
        changes += order.client_reference == "new"
        assert order.version > changes, "two states have one version"
        is_expired = any((each.data or {}).get("reason") == "expired" for each in endings)
        for each in paid:
            is_wrong = each.amount_minor != order.total_minor
            assert each.reason != "wrong_amount" or is_wrong, "it was the right amount"
            is_told = each.reason == "paid_in_time"
            assert is_told == (is_expired and each.paid_at is not None), "was it paid in time?"
        assert stock.reserved == pieces.get("unpaid", 0), "stock is held for nobody"
        assert stock.on_hand == 2 - pieces.get("paid", 0), "stock is lost"
        if order.status == "unpaid":
            is_kept = any(each.settled_at is None for each in tries)
            assert is_kept == (until is not None), "it is kept for nobody, or not for who is paying"
            ends = [each.ends_at for each in tries if each.settled_at is None]
            assert all(each <= until for each in ends), "an attempt outlasts what keeps its order"
        for each in endings:
            is_early = (each.data or {}).get("reason") == "expired" and each.expires_at > each.at
            assert not is_early, "cancelled early"
        if not self.was_set_back:
            self.check_times(order, events, held, tries)
        kept = [(row.status, row.reason) for row in paid]
        kept += [(row.reference.removeprefix(self.sku), row.outcome) for row in tries]
        facts = (order.status, order.version, order.client_reference, until is not None)
        types = (*(event.type for event in events),)
        is_long = order.expires_at > order.created_at + timedelta(minutes=4)
        return *facts, is_long, stock.on_hand, stock.reserved, *kept, types

    def check_times(self, order: Order, events: Any, held: Any, tries: Any) -> None:
        """Nothing was done before its time, by the moments that are kept."""
        at = [event.at for event in events]
        assert at == sorted(at), "its events run backwards in time"
        endings = [each for each in events if each.type in ("order.paid", "order.cancelled")]
        for each in held:
            if each.given_back_at is None or self.is_settling:
                continue
            # Of two in one millisecond either may have been first.
            if all(event.at > each.given_back_at for event in endings):
                deadline = each.ends_at + timedelta(seconds=each.give_back_seconds)
                assert order.expires_at >= deadline, "a freeze did not give back"
        for each in endings:
            if (each.data or {}).get("reason") != "expired":
                continue
            opened = [one.opened_at for one in held if one.given_back_at is None]
            assert not any(moment < each.at for moment in opened), "cancelled in a freeze"
            for one in tries:
                is_settled = one.settled_at is not None and one.settled_at <= each.at
                assert is_settled or one.opened_at >= each.at, "cancelled while it was paid"

    def settle(self) -> None:
        """Nothing is left once all faults are over: no freeze, no attempt, and no order that is not paid."""
        self.is_settling = True
        Scene.set_back = 0
        # <freezes>
        for freeze_id in self.held_by():
            self.thaw(freeze_id)
        assert self.held_by() == [], "a freeze is left"
        # </freezes>
        for _ in range(2):  # those that are open, and those of an order that ended meanwhile
            # <providers>
            with self.shop.engine.begin() as connection:
                ended = sa.update(payment_attempts).values(ends_at=payment_attempts.c.opened_at)
                connection.execute(ended.filter_by(order_id=self.order.id))
            for ask_about in ("first", "second"):
                self.close(ask_about=ask_about)
            # </providers>
            self.shop.expire_in(-1, self.order)
            self.expire()
        # <providers>
        attempts = self.attempts.of_order(self.order.id, page_size=9)
        assert all(each.settled_at for each in attempts), "an attempt is left"
        # </providers>
        assert self.outcome()[0] != "unpaid", "it is left"


def _task(task_id: str) -> Task:
    return Task(task_id, b"", 0, 0, 0, "", 1, 0)


Operation = Callable[[Scene], Any]


OPERATIONS: dict[str, Operation] = {
    each.__name__: each
    for each in (
        *(Scene.pay, Scene.expire, Scene.cancel, Scene.extend, Scene.place_two),
        *(Scene.freeze, Scene.thaw),  # <freezes/>
        *(Scene.attempt, Scene.fail, Scene.close, Scene.close_as_paid),  # <providers/>
        *(Scene.refund, Scene.pay_again, Scene.pay_too_little, Scene.describe, Scene.place_one),
        Scene.die_while_closing,  # <providers/>
        Scene.clock_back,
    )
}


#: Several transactions each: others may come between them, and only what they leave must be right.
OF_SEVERAL = ("close", "close_as_paid", "die_while_closing")
#: By a clock that was set back, a freeze ends later, and gives back later.
LATER = ("thaw", "clock_back")


# <providers>
def _name_taken(scene: Scene) -> sa.Insert:
    """An attempt with the name that the scene's next one has."""
    named = scene.named("second" if scene.is_second else "first")
    row = {**named, "id": str(uuid4()), "order_id": str(uuid4()), "client_id": scene.shop.client}
    times = dict.fromkeys(("opened_at", "ends_at"), now())
    return sa.insert(payment_attempts).values(**row, **times, asks=False)


# </providers>


#: What another session has locked, as the service does, when all come; or has inserted, and takes back.
GATES: dict[str, Callable[[Scene], sa.Executable]] = {
    "the unpaid row": lambda scene: (
        sa.select(unpaid_orders).filter_by(order_id=scene.order.id).with_for_update()
    ),
    "the stock": lambda scene: (
        sa.select(stock_items).filter_by(sku=scene.sku).with_for_update(key_share=True)
    ),
    # <providers>
    "the attempts": lambda scene: (
        sa.select(payment_attempts).filter_by(order_id=scene.order.id).with_for_update()
    ),
    "the attempt's name": _name_taken,
    # </providers>
}


def run(scene: Scene, name: str) -> str:
    try:
        return str(OPERATIONS[name](scene))
    except OrderError as error:
        return type(error).__name__


@contextmanager
def locked(scene: Scene, gate: str) -> Iterator[None]:
    with scene.shop.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(GATES[gate](scene))
        yield
        transaction.rollback()


def stuck(scene: Scene) -> int:
    """How many sessions wait for a lock, or look again and again."""
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with scene.shop.engine.connect() as connection:
        return int(connection.scalar(count) or 0) + len(scene.skipping)


def begun(pool: ThreadPoolExecutor, scene: Scene, name: str) -> Future[str]:
    """An operation that has come to where it cannot go on, or to its end."""
    before, running = stuck(scene), pool.submit(run, scene, name)
    wait_until(lambda: running.done() or stuck(scene) > before, f"{name} to wait")
    return running


def met(scene: Scene, names: Sequence[str], gate: str) -> tuple[Any, ...]:
    """All begin while the gate is closed, one after the other, and go on when it opens."""
    with ThreadPoolExecutor(len(names)) as pool:
        with locked(scene, gate):
            running = [begun(pool, scene, name) for name in names]
        results = [each.result(60) for each in running]
    outcome = scene.outcome()
    scene.settle()
    return (*results, outcome)


def in_turn(scene: Scene, names: Sequence[str]) -> tuple[Any, ...]:
    results = [run(scene, name) for name in names]
    return (*results, scene.outcome())


CASES = [
    ("overdue", "the unpaid row"),
    ("overdue", "the stock"),
    # <providers>
    ("being paid", "the unpaid row"),
    ("being paid", "the attempts"),
    # </providers>
    ("frozen", "the unpaid row"),  # <freezes/>
    # <providers>
    ("overdue", "the attempt's name"),
    ("being paid", "the attempt's name"),
    # </providers>
]


def at(gate: str, groups: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those of which one waits there."""
    return [each for each in groups if gate != "the attempt's name" or "attempt" in each]


def set_back(statement: str) -> str:
    return with_clock(
        statement, f"({{}} - interval '{Scene.set_back} s')" if Scene.set_back else "{}"
    )


def search(shop: Shop, begin: str, gate: str, groups: Iterable[Sequence[str]]) -> None:
    """Raises AssertionError, naming the operations that do what they should not."""
    in_turn_once = cache(lambda *names: in_turn(Scene(shop, begin), names))
    for names in groups:
        try:
            with rewriting(shop.engine, set_back):
                found = met(Scene(shop, begin), names, gate)
                if {*names} & {*OF_SEVERAL} or {*names} >= {*LATER}:
                    continue
                expected = []
                for order in permutations(range(len(names))):
                    *results, outcome = in_turn_once(*(names[number] for number in order))
                    of_each = dict(zip(order, results, strict=True))
                    expected.append((*(of_each[number] for number in range(len(names))), outcome))
            assert found in expected, f"{found} is none of {expected}"
        except AssertionError as error:
            raise AssertionError(f"{begin}, {gate}: {', '.join(names)}: {error}") from error
