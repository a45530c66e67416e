"""Two senders of one subscription's webhooks, each stopped before every statement, and all who act on it meanwhile."""

import copy
import json
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple, cast
from unittest.mock import patch
from uuid import uuid4

import sqlalchemy as sa

from orders.config import Settings
from orders.db.tables import order_events, unpaid_orders
from orders.features.signing.sender import Answer
from orders.features.webhooks.domain import REMINDER, Message
from orders.features.webhooks.sending import Sending
from orders.features.webhooks.service import OVERLAP_MS, Webhooks
from orders.features.webhooks.tables import (
    webhook_deliveries,
    webhook_secrets,
    webhook_subscriptions,
)
from orders.hooks import Hooks
from orders.order.domain import EventType, Timeouts
from orders.order.service import OrderService
from tests.kit.moves import WORKERS, Move
from tests.kit.rewriting import rewriting, with_clock
from tests.kit.shop import Shop

#: What moves change, but for payments, of which any number may be left, and the stock.
TABLES = (
    *(webhook_subscriptions, webhook_secrets, webhook_deliveries),
    *(order_events, unpaid_orders),
)
DUMP = "SELECT json_build_object({})::text".format(
    ", ".join(f"'{each}', (SELECT json_agg(t ORDER BY t::text) FROM {each} t)" for each in TABLES)  # noqa: S608
)
CLEAR = "; ".join(f"DELETE FROM {each}" for each in reversed(TABLES))  # noqa: S608
FILL = "INSERT INTO {0} ({1}) SELECT {1} FROM json_populate_recordset(NULL::{0}, '{2}')"
NO_TRIGGERS = "SET session_replication_role = replica"
RESERVE = "UPDATE stock_items SET on_hand = 9, reserved = (SELECT count(*) FROM unpaid_orders)"
MOMENT, HOUR = timedelta(milliseconds=1), timedelta(hours=1)
#: After so long every lease has ended, and every retry is due.
LONG = timedelta(hours=12)
#: How long a client has to pay that got more time, and how long before the end it is reminded.
MORE, NOTICE = timedelta(hours=18), timedelta(hours=11)
#: When a secret has expired that is deleted.
LONG_AGO = datetime.min.replace(tzinfo=UTC)
#: How long a secret signs beside its successor.
OVERLAP = timedelta(milliseconds=OVERLAP_MS)
#: How far a move moves the clock, if by more than a moment.
PASSES = {"time passes": LONG, "clock back": -HOUR}
GONE = 410
ANSWERS = {"sent": 200, "fail": 500, "gone": GONE}
#: What a world has beside the rows.
OWN = (
    *("now", "stored", "events", "wanted", "wants", "received", "claims", "owner", "leased", "url"),
    *("is_paused", "is_deleted", "woken", "later", "forgotten", "turns"),
    *("latest", "deadline", "extended", "reminded", "secrets"),
)


class Stopped(Exception):
    """A sender has come as far as it may."""


class Stepped:
    """A connection that repeats the replies that a sender has had, gets it one more, and stops."""

    def __init__(self, connection: sa.Connection, replies: list[Any]) -> None:
        self._connection = connection
        self._replies, self._had, self._asked = replies, len(replies), 0

    def exec_driver_sql(self, *statement: Any, **options: Any) -> Any:
        self._asked += 1
        if self._asked > self._had + 1:
            raise Stopped
        if self._asked > self._had:
            result = self._connection.exec_driver_sql(*statement, **options)
            self._replies.append(result.freeze() if result.returns_rows else None)
        reply = self._replies[self._asked - 1]
        return reply and reply()


class Sender(Sending):
    replies: list[Any]

    @contextmanager
    def _autocommit(self) -> Iterator[sa.Connection]:
        with super()._autocommit() as sql:
            yield cast("sa.Connection", Stepped(sql, self.replies))


class Turn(NamedTuple):
    """What a sender knows: what it was answered since it began to look, or the message that it sends."""

    replies: tuple[Any, ...] = ()
    message: Message | None = None
    #: When it began: the URL. All the time: the deliveries that were not to be sent, and the secrets that signed.
    #: At any time: those that signed.
    url: int = 0
    unwanted: frozenset[str] = frozenset()
    signed: frozenset[str] = frozenset()
    signs: frozenset[str] = frozenset()


def _of_world(text: str) -> str:
    """A statement with the world's clock. All rows have one version: worlds are written as a whole."""
    text = with_clock(text, of="current_setting('world.now')::timestamptz")
    return text.replace("webhook_deliveries.xmin", "0")


@contextmanager
def webhook_world(shop: Shop) -> Iterator["WebhookWorld"]:
    """A world whose clock is the database's, and which deletes one row at a time."""
    shop.engine.dispose()  # a single connection knows the world's clock
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"SET world.now = '{datetime.now(UTC)}'")
    with rewriting(shop.engine, _of_world), patch("orders.features.webhooks.sending.SLICE", 1):
        yield WebhookWorld(shop)


class WebhookWorld:
    """A subscription beside one that is paused for good, and the events of one order.

    Redis is perfect, but a sender may die that knows of something: somebody looks at a line whenever it is due.
    """

    def __init__(self, shop: Shop) -> None:
        minutes = NOTICE / timedelta(minutes=1)
        settings = Settings.of(
            database_url="",
            redis_url="",
            webhook_allow_private=True,
            webhook_expiring_minutes=minutes,
        )
        own = (shop.engine, self, settings)
        self.webhooks, self.sending = Webhooks(*own), Sending(*own)
        self.sender = Sender(*own)
        self.engine, self.client = shop.engine, shop.client
        timeouts, hooks = Timeouts(1800, 1, 100 * 86_400), Hooks()
        hooks.committed.append(self._committed)
        self.orders = OrderService(shop.engine, shop.scheduler, timeouts, hooks)
        self._execute(CLEAR)
        shop.stock()
        order = shop.place()
        self.order_id, self.total = order.id, order.total_minor
        self.now = datetime.now(UTC).replace(microsecond=0)
        #: Until when the order is to be paid, if it is not, and the number of the event that said so; those of which
        #: a reminder was received.
        self.deadline: datetime | None = order.expires_at
        self.extended, self.reminded = 0, set[int]()
        [created] = self.orders.events(self.client, self.order_id, after_id=0, page_size=9)
        self.latest = created.id
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
        #: Whether somebody is about to look at the line, or its task is put off; and whether nobody else may know of it.
        self.woken = self.later = self.forgotten = False
        self.turns = {name: Turn() for name in WORKERS}
        self._tick(MOMENT)
        other, _, _ = self.webhooks.subscribe(self.client, url="http://other.test/", events=None)
        self.webhooks.change(self.client, other["id"], {"paused": True})
        made, secret, _ = self.webhooks.subscribe(
            self.client, url="http://this.test/0", events=None
        )
        self.id = made["id"]
        #: What signs, and until when.
        self.secrets: dict[str, datetime | None] = {secret: None}
        self.stored = self._dump()

    def _committed(self, *_: object) -> None:
        self.woken = True

    def schedule(self, id_: str, *, delay_ms: float, even_if_dead: bool = False) -> None:  # noqa: ARG002
        assert (id_, delay_ms) == (self.id, 0), "its task is put off, whatever else is due"
        self.woken = True

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

    def _dump(self) -> dict[str, list[dict[str, Any]]]:
        with self.engine.connect() as connection:
            found = json.loads(connection.exec_driver_sql(DUMP).scalar_one())
        return {name: rows or [] for name, rows in found.items()}

    def _deliveries(self) -> list[dict[str, Any]]:
        """Those of the subscription, in the order of their events; pings come last."""
        own = [
            row | {"due_at": datetime.fromisoformat(row["due_at"])}
            for row in self.stored["webhook_deliveries"]
            if row["subscription_id"] == self.id
        ]
        return sorted(own, key=lambda row: (row["event_id"] or 2**63, row["type"] == REMINDER))

    def save(self) -> Any:
        return {name: copy.copy(getattr(self, name)) for name in OWN}

    def load(self, saved: Any) -> None:
        vars(self).update({name: copy.copy(value) for name, value in saved.items()})
        filled = [
            FILL.format(
                table,
                ", ".join(each.name for each in table.columns if each.computed is None),
                json.dumps(self.stored[table.name]).replace("'", "''"),
            )
            for table in TABLES
        ]
        self._execute(
            "; ".join([NO_TRIGGERS, CLEAR, *filled, RESERVE, "RESET session_replication_role"])
        )

    def key(self) -> Hashable:
        """Moments are named after their order, events and deliveries after their places."""
        rows = self._deliveries()
        names: dict[Any, Any] = {row["id"]: f"d{n}" for n, row in enumerate(rows)}
        names |= {number: f"e{n}" for n, number in enumerate(self.events)}
        names |= {secret: f"s{n}" for n, secret in enumerate(self.secrets)}
        seen: list[Any] = []
        for turn in self.turns.values():
            message = turn.message
            sets = (turn.unwanted, turn.signed, turn.signs)
            told = (turn.url, *(sorted(names.get(each, each) for each in some) for some in sets))
            sends = message and (message.id, message.token, message.url, message.secrets)
            seen += [told, self._known(turn.replies), sends]
        for row in rows:
            kept = ("id", "event_id", "type", "status", "attempts", "due_at")
            seen += [[row[name] for name in kept], row["last_attempt_at"] is None]
            seen += [self.claims[row["id"]], self.owner.get(row["id"]), row["id"] in self.leased]
        seen += [self.events, sorted(self.wanted), self.received, self.now]
        seen += [self.deadline, self.extended, sorted(self.reminded), [*self.secrets.values()]]
        moments: set[datetime] = set()

        def named(value: Any) -> Any:
            if isinstance(value, datetime):
                moments.add(value)
            if isinstance(value, list | tuple):
                return [*map(named, value)]
            return names.get(value, value)

        named(seen)
        for n, moment in enumerate(sorted(moments)):
            names[moment] = f"@{n} {max(0, round((moment - self.now) / HOUR))}"
        facts = (self.is_paused, self.is_deleted, self.woken, self.later, self.forgotten)
        return repr((named(seen), facts, self.wants, self.url))

    def _known(self, replies: tuple[Any, ...]) -> list[Any]:
        """What a sender read: the line, the subscription and the order."""
        known: list[Any] = [
            [(row.id, row.due_at) for row in reply().all()] for reply in replies[:1]
        ]
        for reply in replies[1:2]:
            row = reply().one()
            left = row.expires_in_ms
            is_near = left is not None and (left <= 0, left * MOMENT <= NOTICE)
            known += [row.url, row.paused_at is None, is_near]
            known += [row.superseded, tuple(row.secrets)]
        orders = (order for reply in replies[2:3] for order in reply().all())
        return known + [(order.status, order.expires_at) for order in orders]

    def can(self, move: Move) -> bool:
        if move.verb in ("extend", "pay"):
            return self.deadline is not None
        if not move.actor:
            is_there = move.verb != "redeliver" or self._deliveries()
            is_possible = not self.is_deleted or move.verb in ("event", "prune", *PASSES)
            return bool(is_there) and is_possible
        turn = self.turns[move.actor]
        if move.verb == "step":
            return turn.message is None and bool(turn.replies or self.woken)
        return bool(turn.message or (move.verb == "die" and turn.replies))

    def do(self, move: Move) -> None:
        self._tick(PASSES.get(move.verb, MOMENT))
        if move.verb in ANSWERS:
            self._answer(move.actor, ANSWERS[move.verb])
        else:
            getattr(self, "do_" + move.verb.replace(" ", "_"))(*filter(None, [move.actor]))
        self.stored = self._dump()
        self._check_rows()

    # -- the senders -----------------------------------------------------------------------

    def do_step(self, name: str) -> None:
        """One more statement of a look at the line, which somebody was woken for."""
        turn, unwanted, signs = self.turns[name], self._unwanted(), self._signing()
        if not turn.replies:
            self.woken, turn = False, Turn(url=self.url, unwanted=unwanted, signed=signs)
            self.later = bool(self.sending.lines([self.id]))  # otherwise its task is done
        unwanted, signed = turn.unwanted & unwanted, turn.signed & signs
        turn = turn._replace(unwanted=unwanted, signed=signed, signs=turn.signs | signs)
        self.sender.replies = [*turn.replies]
        try:
            message, more = self.sender.claim(self.id, lambda _: "body")
        except Stopped:
            self.turns[name] = turn._replace(replies=(*self.sender.replies,))
            return
        self.turns[name] = Turn(message=message, url=turn.url)
        self.woken |= more
        if message is not None:
            assert message.id not in turn.unwanted, "it was not to be sent any more, or not yet"
            assert turn.signed <= {*message.secrets} <= turn.signs, "other secrets sign"
            self._claimed(message, name)

    def _unwanted(self) -> frozenset[str]:
        """The deliveries that are not to be sent now."""
        reminds = self.extended if self._is_near() else -1
        return frozenset(
            row["id"]
            for row in self._deliveries()
            if self.is_paused or (row["type"] == REMINDER and row["event_id"] != reminds)
        )

    def _is_near(self) -> bool:
        """Whether it is time to remind of the deadline."""
        return self.deadline is not None and self.deadline - NOTICE <= self.now < self.deadline

    def _signing(self) -> frozenset[str]:
        valid = (secret for secret, end in self.secrets.items() if end is None or end > self.now)
        return frozenset(valid)

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
        self.woken |= self.sending.record(message, Answer(status, None, None))
        if self.owner.get(message.id) != name:
            assert self._dump() == self.stored, "who lost the lease changed something"
            return
        self._let_go(message.id)
        if status == GONE and int(message.url[-1]) == self.url:
            self.is_paused = True

    def _receive(self, message: Message) -> None:
        assert message.secrets, "it is not signed"
        number = message.sequence
        if number is not None and message.type == REMINDER:
            assert number in self.received, "it reminds of a deadline that it does not know"
            self.reminded.add(number)
        elif number is not None and number not in self.received:
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

    def do_clock_back(self) -> None:
        """What was due is not any more."""
        self.forgotten = True

    def do_event(self, amount: int = 1) -> None:
        """A payment of too little, of which an order may have any number."""
        money: Any = {"provider": "bank", "amount_minor": amount, "currency": "EUR"}
        self.orders.pay(self.client, self.order_id, reference=uuid4().hex, **money)
        self._find_events()

    def do_pay(self) -> None:
        self.deadline = None
        self.do_event(self.total)

    def do_extend(self) -> None:
        """Give more time, of which there is a reminder before its end."""
        self.deadline = self.now + MORE
        times: Any = {"expires_at": self.deadline, "versions": None}
        self.orders.extend(self.client, self.order_id, **times)
        self._find_events()
        self.extended = self.latest

    def _find_events(self) -> None:
        after = {"after_id": self.latest, "page_size": 9}
        for event in self.orders.events(self.client, self.order_id, **after):
            self.latest = event.id
            self.events.append(event.id)
            if (self.wants or event.type == EventType.PAID) and not self.is_deleted:
                self.wanted.add(event.id)

    def do_rotate(self) -> None:
        _, secret = self.webhooks.rotate_secret(self.client, self.id)
        until, kept = self.now + OVERLAP, self._signing()
        ends = {each: min(end or until, until) for each, end in self.secrets.items()}
        old = {each: end if each in kept else LONG_AGO for each, end in ends.items()}
        self.secrets = {**old, secret: None}

    def do_pause(self) -> None:
        self.webhooks.change(self.client, self.id, {"paused": True})
        self.is_paused = True

    def do_resume(self) -> None:
        self.webhooks.change(self.client, self.id, {"paused": False})
        self.is_paused = False

    def do_delete(self) -> None:
        self.webhooks.unsubscribe(self.client, self.id)
        self.is_deleted = self.is_paused = True

    def do_prune(self) -> None:
        self.sending.prune()

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
        subscriptions = self.stored["webhook_subscriptions"]
        [row] = [row for row in subscriptions if row["id"] == self.id]
        assert (row["paused_at"] is not None) == self.is_paused, "it is paused, or is not"
        if self.is_deleted:
            return
        events = [row for row in rows if row["event_id"] is not None and row["type"] != REMINDER]
        numbers = [row["event_id"] for row in events]
        assert numbers == sorted(self.wanted), "no delivery, or one that nobody wants"
        assert all(row["attempts"] == self.claims[row["id"]] for row in rows), "miscounted"
        is_known = self.woken or self.later or self.is_paused
        assert is_known or "pending" not in {row["status"] for row in rows}, "it has no task"
        is_looked_at = self.woken or any(turn.replies for turn in self.turns.values())
        if not (is_looked_at or self.forgotten or self.is_paused):
            untried = (row for row in events if row["last_attempt_at"] is None)
            waiting = (row["event_id"] for row in untried if row["status"] == "pending")
            first = min(waiting, default=2**63)
            for row in rows:
                is_free = (row["event_id"] or 0) + (row["type"] == REMINDER) <= first
                is_due = row["status"] == "pending" and row["due_at"] <= self.now
                assert not (is_free and is_due), "nobody knows what is due"

    def check(self) -> None:
        """Once nothing goes wrong any more, the sweep finds all that is left, and it is sent."""
        self._tick(LONG)
        if self.is_paused:
            assert not self._is_behind(), "the sweep finds what is paused"
        while self.is_deleted and self.sending.prune():
            pass
        if self.is_paused and not self.is_deleted:
            self.do_resume()
        is_due = self._is_near() and self.extended in self.wanted and not self.is_deleted
        for _ in takewhile(lambda _: self._is_behind(), range(4)):
            self.leased.clear()
            self._send_all()
            self._tick(LONG)
        self.stored = self._dump()
        left = {row["status"] for row in self._deliveries()}
        assert left <= (set() if self.is_deleted else {"delivered"}), "something is left"
        assert self.is_deleted or self.wanted <= {*self.received}, "an event is lost"
        assert not is_due or self.extended in self.reminded, "nobody was reminded"

    def _is_behind(self) -> bool:
        return any(line.id == self.id for line in self.sending.lines(before_ms=0))

    def _send_all(self) -> None:
        """What a worker does that looks at a line, until nobody tells it to look again."""
        for _ in range(50):
            message, more = self.sending.claim(self.id, lambda _: "body")
            if message is not None:
                assert message.id not in self._unwanted(), "it was not to be sent"
                self._claimed(message, "w1")
                self._receive(message)
                more |= self.sending.record(message, Answer(200, None, None))
                self._let_go(message.id)
            if not more:
                return
        raise AssertionError("it looks for ever")
