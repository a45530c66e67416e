"""Two senders of one subscription's webhooks, each stopped before every statement, and all who act on it meanwhile."""

import copy
import json
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import uuid4

import sqlalchemy as sa

from orders.order.domain import EventType, Timeouts
from orders.order.service import OrderService
from orders.sql.statements import Statements
from orders.webhooks.domain import Answer, Message
from orders.webhooks.service import WebhookPolicy, Webhooks
from tests.conftest import Shop
from tests.interleavings.moves import WORKERS, Move

TABLES = ("subscriptions", "secrets", "interests", "deliveries")
DUMP = "SELECT json_build_object({})::text".format(
    ", ".join(f"'{each}', (SELECT json_agg(t ORDER BY t) FROM webhook_{each} t)" for each in TABLES)  # noqa: S608
)
CLEAR = "; ".join(f"DELETE FROM webhook_{each}" for each in reversed(TABLES))  # noqa: S608
FILL = "INSERT INTO webhook_{0} SELECT * FROM json_populate_recordset(NULL::webhook_{0}, '{1}')"
MOMENT = timedelta(milliseconds=1)
#: After so long every lease has ended, and every retry is due.
LONG = timedelta(hours=12)
GONE = 410
ANSWERS = {"sent": 200, "fail": 500, "gone": GONE}
#: What a world has beside the rows.
OWN = (
    *("now", "stored", "events", "wanted", "wants", "received", "claims", "owner", "leased", "url"),
    *("is_paused", "is_deleted", "woken", "later", "forgotten", "turns"),
)


class Stopped(Exception):
    """A sender has come as far as it may."""


class Stepped(Statements):
    """Repeats the replies that a sender has had, gets it one more, and stops."""

    def __init__(self, connection: sa.Connection, replies: list[Any]) -> None:
        super().__init__(connection)
        self._replies, self._had, self._asked = replies, len(replies), 0

    def run(self, statement: sa.Executable, **values: Any) -> Any:
        self._asked += 1
        if self._asked > self._had + 1:
            raise Stopped
        if self._asked > self._had:
            result = super().run(statement, **values)
            self._replies.append(result.freeze() if result.returns_rows else None)
        reply = self._replies[self._asked - 1]
        return reply and reply()


class Sender(Webhooks):
    replies: list[Any]

    def _opened(self, connection: sa.Connection) -> Statements:
        return Stepped(connection, self.replies)


class Turn(NamedTuple):
    """What a sender knows: what it was answered since it began to look, or the message that it sends."""

    replies: tuple[Any, ...] = ()
    message: Message | None = None
    #: When it began: the URL; and whether the subscription was paused or deleted all the time.
    url: int = 0
    was_told: bool = True


@contextmanager
def webhook_world(shop: Shop) -> Iterator["WebhookWorld"]:
    """A world whose clock is the database's, and which deletes one row at a time."""

    def stop_clock(*arguments: Any) -> tuple[str, Any]:
        _, _, text, parameters, *_ = arguments
        for each in ("statement_timestamp()", "clock_timestamp()"):
            text = text.replace(each, "current_setting('world.now')::timestamptz")
        return text, parameters

    shop.engine.dispose()  # a single connection knows the world's clock
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"SET world.now = '{datetime.now(UTC)}'")
    sa.event.listen(shop.engine, "before_cursor_execute", stop_clock, retval=True)
    try:
        with patch("orders.webhooks.service.SLICE", 1):
            yield WebhookWorld(shop)
    finally:
        sa.event.remove(shop.engine, "before_cursor_execute", stop_clock)


class WebhookWorld:
    """A subscription beside one that is paused for good, and the events of one order.

    Redis is perfect until a sender dies: somebody looks at a line whenever it is due.
    """

    def __init__(self, shop: Shop) -> None:
        policy = WebhookPolicy(timeout_seconds=5, allow_private=True, reminder_minutes=0)
        own = (shop.engine, self, policy, lambda *_: None)
        self.webhooks, self.sender = Webhooks(*own), Sender(*own)
        self.engine, self.client = shop.engine, shop.client
        self.orders = OrderService(shop.engine, self, Timeouts(1800, 1, 86_400), webhooks=self)
        shop.stock(on_hand=10_000)
        self.order_id = shop.place().id
        #: The number of the latest event of all: events are not undone, only their deliveries.
        self.latest = self._event_after(0)
        self.now = datetime.now(UTC).replace(microsecond=0)
        #: The events; those of which there has to be a delivery, and whether the next is wanted, too; and those that
        #: were received, in the order of their first attempts.
        self.events: list[int] = []
        self.wanted: set[int] = set()
        self.wants = True
        self.received: list[int] = []
        #: By delivery: how often it was claimed since it was asked for, and who may record what becomes of it.
        self.claims, self.owner = Counter[str](), dict[str, str]()
        #: The deliveries that nobody else may send.
        self.leased: set[str] = set()
        self.url = 0
        self.is_paused = self.is_deleted = False
        #: Whether somebody is about to look at the line, or will be; and whether only the sweep may know of it.
        self.woken = self.later = self.forgotten = False
        self.turns = {name: Turn() for name in WORKERS}
        self._tick(MOMENT)
        self._execute(CLEAR)
        other, _, _ = self.webhooks.subscribe(self.client, url="http://other.test/", events=None)
        self.webhooks.change(self.client, other.id, {"paused": True})
        made, _, _ = self.webhooks.subscribe(self.client, url="http://this.test/0", events=None)
        self.id = made.id
        self.stored = self._dump()

    def schedule(self, _: str, *, delay_ms: float, even_if_dead: bool = False) -> None:  # noqa: ARG002
        self.woken |= not delay_ms
        self.later |= bool(delay_ms)

    def cancel(self, order_id: str) -> None:
        """An order's check, which is none of these."""

    def _tick(self, more: timedelta) -> None:
        self.now += more
        self._execute(f"SET world.now = '{self.now}'")

    def _execute(self, statements: str) -> None:
        with self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.autocommit = True
            driver.execute(statements)

    # -- for the explorer ------------------------------------------------------------------

    def _dump(self) -> str:
        with self.engine.connect() as connection:
            return str(connection.exec_driver_sql(DUMP).scalar_one())

    def _deliveries(self) -> list[dict[str, Any]]:
        """Those of the subscription, in the order of their events; pings come last."""
        rows = json.loads(self.stored)["deliveries"] or ()
        own = [row for row in rows if row["subscription_id"] == self.id]
        for row in own:
            row["due_at"] = datetime.fromisoformat(row["due_at"])
        return sorted(own, key=lambda row: (row["event_id"] or 2**63, row["created_at"]))

    def save(self) -> Any:
        return {name: copy.copy(getattr(self, name)) for name in OWN}

    def load(self, saved: Any) -> None:
        vars(self).update({name: copy.copy(value) for name, value in saved.items()})
        found = {name: json.dumps(rows or []) for name, rows in json.loads(self.stored).items()}
        filled = [FILL.format(name, found[name].replace("'", "''")) for name in TABLES]
        self._execute("; ".join([CLEAR, *filled]))

    def key(self) -> Hashable:
        """Moments are named after their order, events and deliveries after their places."""
        rows = self._deliveries()
        names: dict[Any, Any] = {row["id"]: f"d{n}" for n, row in enumerate(rows)}
        names |= {number: f"e{n}" for n, number in enumerate(self.events)}
        seen: list[Any] = []
        for replies, message, *told in self.turns.values():
            looks = [[(row.id, row.due_at) for row in reply().all()] for reply in replies[:1]]
            targets = [reply().one() for reply in replies[1:]]
            known = [(row.url, row.paused_at is None, row.deleted_at is None) for row in targets]
            sends = message and (message.id, message.token, message.url, message.sequence)
            seen += [told, looks, known, sends]
        for row in rows:
            kept = ("id", "event_id", "type", "status", "attempts", "due_at")
            seen += [[row[name] for name in kept], row["last_attempt_at"] is None]
            seen += [self.claims[row["id"]], self.owner.get(row["id"]), row["id"] in self.leased]
        seen += [self.events, sorted(self.wanted), self.received, self.now]
        moments: set[datetime] = set()

        def named(value: Any) -> Any:
            if isinstance(value, datetime):
                moments.add(value)
            if isinstance(value, list | tuple):
                return [*map(named, value)]
            return names.get(value, value)

        named(seen)
        names |= {moment: f"@{n}" for n, moment in enumerate(sorted(moments))}
        facts = (self.is_paused, self.is_deleted, self.woken, self.later, self.forgotten)
        return repr((named(seen), facts, self.wants, self.url))

    def can(self, move: Move) -> bool:
        if not move.actor:
            is_there = move.verb != "redeliver" or self._deliveries()
            return bool(is_there) and (not self.is_deleted or move.verb in ("event", "time passes"))
        turn = self.turns[move.actor]
        if move.verb == "step":
            return turn.message is None and bool(turn.replies or self.woken)
        return bool(turn.message or (move.verb == "die" and turn.replies))

    def do(self, move: Move) -> None:
        self._tick(LONG if move.verb == "time passes" else MOMENT)
        if move.verb in ANSWERS:
            self._answer(move.actor, ANSWERS[move.verb])
        else:
            getattr(self, "do_" + move.verb.replace(" ", "_"))(*filter(None, [move.actor]))
        self.stored = self._dump()
        self._check_rows()

    # -- the senders -----------------------------------------------------------------------

    def do_step(self, name: str) -> None:
        """One more statement of a look at the line, which somebody was woken for."""
        turn = self.turns[name]
        if not turn.replies:
            self.woken, turn = False, Turn(url=self.url)
        turn = turn._replace(was_told=turn.was_told and (self.is_paused or self.is_deleted))
        self.sender.replies = [*turn.replies]
        try:
            message, more = self.sender.claim(self.id, lambda _: "body")
        except Stopped:
            self.turns[name] = turn._replace(replies=(*self.sender.replies,))
            return
        self.turns[name] = Turn(message=message, url=turn.url)
        self.woken |= more
        if message is not None:
            assert not turn.was_told, "it was paused or deleted before"
            self._claimed(message, name)

    def _claimed(self, message: Message, name: str) -> None:
        assert message.id not in self.leased, "two send one delivery"
        self.leased.add(message.id)
        self.owner[message.id] = name
        self.claims[message.id] += 1

    def _answer(self, name: str, status: int) -> None:
        """The message arrives, and what becomes of it is recorded."""
        url, message = self.turns[name].url, self.turns[name].message
        assert message is not None
        self.turns[name] = Turn()
        assert int(message.url[-1]) >= url, "it went to a URL that was changed before"
        self._receive(message)
        self.woken |= self.webhooks.record(message, Answer(status, None, None))
        if self.owner.get(message.id) != name:
            assert self._dump() == self.stored, "who lost the lease changed something"
            return
        self._let_go(message.id)
        if status == GONE and int(message.url[-1]) == self.url:
            self.is_paused = not self.is_deleted

    def _receive(self, message: Message) -> None:
        assert message.secrets, "it is not signed"
        number = message.sequence
        if number is not None and number not in self.received:
            missing = [each for each in self.wanted - {*self.received} if each < number]
            assert not missing, "it came before an earlier event"
            self.received.append(number)

    def _let_go(self, delivery_id: str) -> None:
        self.owner.pop(delivery_id, None)
        self.leased.discard(delivery_id)

    def do_die(self, name: str) -> None:
        self.turns[name], self.forgotten = Turn(), True

    # -- the others ------------------------------------------------------------------------

    def do_time_passes(self) -> None:
        self.forgotten |= bool(self.leased)
        self.leased.clear()
        self.woken |= self.later
        self.later = False

    def do_event(self) -> None:
        """A payment of too little, of which an order may have any number."""
        money: Any = {"provider": "bank", "amount_minor": 1, "currency": "EUR"}
        self.orders.pay(self.client, self.order_id, reference=uuid4().hex, **money)
        self.latest = self._event_after(self.latest)
        self.events.append(self.latest)
        if self.wants and not self.is_deleted:
            self.wanted.add(self.latest)

    def _event_after(self, number: int) -> int:
        after = {"after_id": number, "page_size": 9}
        [event] = self.orders.events(self.client, self.order_id, **after)
        return event.id

    def do_pause(self) -> None:
        self.webhooks.change(self.client, self.id, {"paused": True})
        self.is_paused = True

    def do_resume(self) -> None:
        self.webhooks.change(self.client, self.id, {"paused": False})
        self.is_paused = False

    def do_delete(self) -> None:
        self.webhooks.unsubscribe(self.client, self.id)
        self.is_deleted, self.is_paused = True, False

    def do_change_url(self) -> None:
        self.url += 1
        self.webhooks.change(self.client, self.id, {"url": f"http://this.test/{self.url}"})

    def do_narrow(self) -> None:
        self.webhooks.change(self.client, self.id, {"events": [EventType.PAID]})
        self.wants = False

    def do_widen(self) -> None:
        self.webhooks.change(self.client, self.id, {"events": None})
        self.wants = True

    def do_ping(self) -> None:
        self.webhooks.ping(self.client, self.id)

    def do_redeliver(self) -> None:
        """Have the first event sent again."""
        first = self._deliveries()[0]["id"]
        self.webhooks.redeliver(self.client, first)
        self._let_go(first)
        self.claims[first] = 0

    # -- what must hold --------------------------------------------------------------------

    def _check_rows(self) -> None:
        rows = self._deliveries()
        [row] = [row for row in json.loads(self.stored)["subscriptions"] if row["id"] == self.id]
        assert (row["paused_at"] is not None) == self.is_paused, "it is paused, or is not"
        if self.is_deleted:
            return
        numbers = [row["event_id"] for row in rows if row["event_id"] is not None]
        assert numbers == sorted(self.wanted), "no delivery, or one that nobody wants"
        assert all(row["attempts"] == self.claims[row["id"]] for row in rows), "miscounted"
        is_looked_at = self.woken or any(turn.replies for turn in self.turns.values())
        if not (is_looked_at or self.forgotten or self.is_paused):
            pending = [row for row in rows if row["status"] == "pending"]
            untried = [row["event_id"] for row in pending if row["last_attempt_at"] is None]
            first = min(filter(None, untried), default=2**63)
            free = [row for row in pending if (row["event_id"] or 0) <= first]
            assert all(row["due_at"] > self.now for row in free), "nobody knows what is due"

    def check(self) -> None:
        """Once nothing goes wrong any more, the sweep finds all that is left, and it is sent."""
        self._tick(LONG)
        if self.is_paused:
            assert not self._is_behind(), "the sweep finds what is paused"
            self.do_resume()
        for _ in takewhile(lambda _: self._is_behind(), range(4)):
            self.leased.clear()
            self._send_all()
            self._tick(LONG)
        self.stored = self._dump()
        left = {row["status"] for row in self._deliveries()}
        assert left <= (set() if self.is_deleted else {"delivered"}), "something is left"
        assert self.is_deleted or self.wanted <= {*self.received}, "an event is lost"

    def _is_behind(self) -> bool:
        return any(line.id == self.id for line in self.webhooks.lines(None, 0))

    def _send_all(self) -> None:
        """What a worker does that looks at a line, until nobody tells it to look again."""
        for _ in range(50):
            message, more = self.webhooks.claim(self.id, lambda _: "body")
            if message is not None:
                assert not self.is_deleted, "it was deleted before"
                self._claimed(message, "w1")
                self._receive(message)
                more |= self.webhooks.record(message, Answer(200, None, None))
                self._let_go(message.id)
            if not more:
                return
        raise AssertionError("it looks for ever")
