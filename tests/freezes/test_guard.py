"""Freezes that open by themselves: for a shut door, and a clock that jumped."""

import itertools
import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import click
import pytest
import sqlalchemy as sa
from flask.cli import ScriptInfo

from devtools.processes import wait_until
from orders.app import create_app
from orders.config import Settings
from orders.db.database import autocommit
from orders.db.ids import new_id
from orders.db.tables import unpaid_orders
from orders.errors import StorageUnavailable
from orders.features.freezes.domain import FreezeState
from orders.features.freezes.guard import OTHERS_MS, Guard
from orders.features.freezes.service import SQL, Freezes
from orders.features.freezes.settings import FreezeSettings
from orders.features.freezes.signs import CLOCK, DOOR, start_signing
from orders.features.freezes.tables import api_signs
from orders.timeouts import flows
from orders.wiring import bootstrap
from tests.kit.moments import later, now
from tests.kit.shop import Shop
from worker import Task

SETTINGS = FreezeSettings(door_freeze_after_seconds=15)


class Watched:
    """A guard of a shop, on clocks that the test moves."""

    def __init__(self, shop: Shop, **settings: Any) -> None:
        self.engine = shop.engine
        self.freezes = Freezes(self.engine)
        self.own_ms = 1e6
        self.redis_ahead_ms: float | None = 0.0
        self.wall_ahead_ms = 0.0
        self.sql_ahead_ms = 0.0
        self.guard = Guard(
            self.engine,
            replace(SETTINGS, **settings),
            lambda: None if self.redis_ahead_ms is None else self.own_ms + self.redis_ahead_ms,
            lambda: self.own_ms,
            lambda: self.own_ms + self.wall_ahead_ms,
        )
        self._sql_look = self.guard._read
        self.guard._read = self._look  # type: ignore[method-assign]
        self._sql_at = self._sql_look().at.timestamp() * 1000 - self.own_ms

    def _look(self) -> Any:
        ms = self._sql_at + self.own_ms + self.sql_ahead_ms
        return SimpleNamespace(
            **{**self._sql_look()._asdict(), "at": datetime.fromtimestamp(ms / 1000, UTC)}
        )

    def look(self, times: int = 1, ms: float = 1000) -> list[tuple[str, str]]:
        """Look as often, so far apart; return who opened freezes that hold, and their states."""
        for _ in range(times):
            self.own_ms += ms
            self.guard.look()
        return [(freeze.opened_by, freeze.state) for freeze in self.freezes.in_force()]

    def sign(self, seconds_ago: float = 0) -> None:
        ago = later(now(), "for_ms")
        with self.engine.begin() as connection:
            connection.execute(sa.delete(api_signs).where(api_signs.c.at <= now()))
            connection.execute(
                sa.insert(api_signs).values(process=new_id(), at=ago),
                {"for_ms": -1000 * seconds_ago},
            )

    def give_back(self) -> None:
        """As the flow of freezes does."""
        with self.engine.begin() as connection:
            connection.execute(sa.text("UPDATE freezes SET given_back_at = now()"))


@pytest.fixture
def watched(shop: Shop) -> Watched:
    return Watched(shop)


# -- the door --------------------------------------------------------------------------------


def test_a_deployment_without_an_api_is_never_frozen(watched: Watched) -> None:
    assert watched.look(3) == []


def test_a_door_that_is_shut_freezes_until_somebody_serves(watched: Watched) -> None:
    watched.sign(seconds_ago=-3600)  # by a clock that was ahead
    watched.sign(seconds_ago=10)
    assert watched.look() == []
    watched.sign(seconds_ago=20)
    assert watched.look(3) == [(DOOR, FreezeState.OPEN)]
    watched.sign()
    assert watched.look() == [(DOOR, FreezeState.THAWING)]


def test_a_batch_looks_when_the_door_may_have_been_shut_for_too_long(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the next look of its own, when orders that fell due in between are cancelled."""

    def cancel(later_ms: float) -> list[str]:
        watched.own_ms += later_ms
        watched.guard.not_after()
        return [freeze.opened_by for freeze in watched.freezes.in_force()]

    watched.sign(seconds_ago=13.5)
    assert watched.look() == []
    assert cancel(300) == []
    assert cancel(1000) == [DOOR]
    monkeypatch.setattr(watched.guard, "look", lambda: pytest.fail("it is known to be shut"))
    assert cancel(600) == [DOOR]


def test_a_silence_is_frozen_once(watched: Watched, shop: Shop) -> None:
    """Even if workers look together or start anew, and after a person has thawed it."""
    watched.sign(seconds_ago=20)
    watched.look()
    other = Watched(shop)
    assert other.look() == [(DOOR, FreezeState.OPEN)]
    watched.freezes.thaw(watched.freezes.in_force()[0].id, by="a person")
    watched.give_back()
    assert [watched.look(2), other.look(2), Watched(shop).look(2)] == [[], [], []]
    watched.sign()
    watched.look()
    watched.sign(seconds_ago=20)
    assert watched.look() == [(DOOR, FreezeState.OPEN)], "another silence"


def test_a_freeze_that_opens_by_itself_is_bounded(shop: Shop) -> None:
    watched = Watched(shop, freeze_at_most_seconds=600)
    watched.sign(seconds_ago=20)
    watched.look()
    [freeze] = watched.freezes.in_force()
    assert freeze.ends_at - freeze.opened_at == timedelta(seconds=600)


def test_each_rule_can_be_switched_off(shop: Shop) -> None:
    watched = Watched(shop, door_freeze_after_seconds=0, clock_freeze_jump_seconds=0)
    watched.sign(seconds_ago=20)
    watched.look()
    watched.sql_ahead_ms += 600_000
    assert watched.look() == []
    assert watched.guard.not_after() is None


def test_a_shut_door_is_frozen_after_an_outage_of_the_database(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageUnavailable("gone")

    watched.sign(seconds_ago=20)
    with monkeypatch.context() as outage:
        outage.setattr(watched.freezes.__class__, "open", fail)
        with pytest.raises(StorageUnavailable):
            watched.look()
    assert watched.look() == [(DOOR, FreezeState.OPEN)]


def test_an_api_signs_only_while_it_is_ready(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.features.freezes.signs.SIGN_SECONDS", 0.001)
    ready, asked = threading.Event(), itertools.count()
    end = start_signing(watched.engine, lambda: next(asked) >= 0 and ready.is_set())
    try:
        wait_until(lambda: next(asked) > 10, "it to be asked")
        assert watched._sql_look().signed_at is None
        ready.set()
        wait_until(lambda: watched._sql_look().signed_at is not None, "a sign")
    finally:
        end()


def test_an_api_process_has_one_sign_and_old_ones_are_forgotten(watched: Watched) -> None:
    watched.sign(seconds_ago=2 * 86_400)
    process = new_id()
    for _ in range(2):
        with autocommit(watched.engine) as connection:
            SQL.sign(connection, process=process)
            assert [*connection.scalars(sa.select(api_signs.c.process))] == [process]


@pytest.mark.parametrize(("command", "signs"), [("flask", 0), ("keys", 0), ("run", 1), ("", 1)])
def test_a_command_does_not_sign_as_an_api_does(
    monkeypatch: pytest.MonkeyPatch, command: str, signs: int
) -> None:
    """But for the one that serves the API."""
    settings = Settings.of(
        database_url="postgresql+psycopg://db/x", redis_url="redis://127.0.0.1:1"
    )
    signed: list[object] = []
    monkeypatch.setattr("orders.app.process_settings", lambda _: settings)
    monkeypatch.setattr(
        "orders.features.freezes.feature.start_signing", lambda *who: signed.append(who)
    )
    context = click.Context(click.Command(command), info_name=command, obj=ScriptInfo())
    with context if command else nullcontext():
        create_app().extensions["orders"].close()
    assert len(signed) == signs


def test_the_flow_that_workers_run_has_a_guard(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(shop)
    watched.sign(seconds_ago=20)
    shop.expire_in(-1, order := shop.place())
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(Guard, "not_after", lambda _: long_ago)
    url = shop.engine.url.render_as_string(hide_password=False)
    services = bootstrap(Settings.of(database_url=url, redis_url="redis://127.0.0.1:1"))
    try:
        timeouts = flows(services)[0]
        timeouts.handler([Task(order.id)])
        assert shop.statuses() == {order.id: "unpaid"}, "it is not due by the worker's reckoning"
        assert timeouts.tick is not None
        timeouts.tick()
    finally:
        services.close()
    assert [freeze.opened_by for freeze in watched.freezes.in_force()] == [DOOR]


# -- the clock -------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_ms", [600_000, -600_000, 2100])
def test_a_clock_that_jumps_freezes_until_it_agrees_again(watched: Watched, jump_ms: float) -> None:
    watched.look(2)
    watched.sql_ahead_ms += jump_ms
    assert watched.look(3) == [(CLOCK, FreezeState.OPEN)]
    watched.sql_ahead_ms -= jump_ms
    assert watched.look(30) == [(CLOCK, FreezeState.OPEN)]
    watched.sql_ahead_ms += jump_ms
    assert watched.look() == [(CLOCK, FreezeState.OPEN)]
    watched.sql_ahead_ms -= jump_ms
    assert watched.look(60) == [(CLOCK, FreezeState.OPEN)], "not a minute since it agreed again"
    assert watched.look() == [(CLOCK, FreezeState.THAWING)]


def test_a_person_says_which_clock_is_right(watched: Watched) -> None:
    watched.look()
    watched.sql_ahead_ms += 600_000
    [_] = watched.look()
    [freeze] = watched.freezes.in_force()
    assert freeze.give_back_seconds == pytest.approx(900, abs=1), "by what the clock is ahead, too"
    watched.freezes.thaw(freeze.id, by="a person")
    watched.give_back()
    assert watched.look(3) == []


def test_a_second_jump_beyond_a_freezes_end_is_frozen_too(watched: Watched) -> None:
    """Time that passes is believed, but no time that was jumped over."""
    watched.look()
    watched.sql_ahead_ms += 600_000
    watched.look()
    with watched.engine.begin() as connection:
        connection.execute(sa.text("UPDATE freezes SET ends_at = now() - interval '1 day'"))
    watched.sql_ahead_ms += 2 * 86_400_000
    assert watched.look(3) == [(CLOCK, FreezeState.THAWING), (CLOCK, FreezeState.OPEN)]
    watched.sql_ahead_ms = 0
    assert watched.look(61)[1] == (CLOCK, FreezeState.THAWING)


def test_workers_that_see_a_jump_together_open_one_freeze(
    watched: Watched, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Watched(shop)
    watched.look()
    other.look()
    for each, ahead_ms in ((watched, 600_000), (other, 600_300)):
        each.sql_ahead_ms += ahead_ms
    with monkeypatch.context() as instant:
        # Neither finds what the other has not committed yet.
        for each, found in [(each, each._look()) for each in (watched, other)]:
            instant.setattr(each.guard, "_read", lambda found=found: found)
            each.guard.look()
    assert watched.look() == other.look() == [(CLOCK, FreezeState.OPEN)]
    watched.freezes.thaw(watched.freezes.in_force()[0].id, by="a person")
    assert watched.look() == other.look() == [(CLOCK, FreezeState.THAWING)]


def test_a_jump_while_time_is_given_back_is_another(watched: Watched) -> None:
    """Also once the newest freeze is one that was opened before the clock went back."""
    watched.look()
    before = watched.freezes.open(reason="another", by="a person", seconds=60).freeze
    watched.freezes.thaw(before.id, by="a person")
    with watched.engine.begin() as connection:
        connection.execute(sa.text("UPDATE freezes SET opened_at = now() + interval '1 day'"))
    for _ in range(2):
        watched.sql_ahead_ms += 600_000
        watched.look()
        [held] = [each.id for each in watched.freezes.in_force() if each.state is FreezeState.OPEN]
        watched.freezes.thaw(held, by="a person")
        watched.look()


@pytest.mark.parametrize("is_set", [False, True])
def test_a_machine_that_slept_is_not_one_whose_clock_is_set(
    watched: Watched,
    is_set: bool,  # noqa: FBT001  pytest's
) -> None:
    """All three may be on one machine: restored, or told a wrong time."""
    watched.look(1, ms=OTHERS_MS + 1)
    watched.sql_ahead_ms += 600_000
    watched.redis_ahead_ms = 600_000.0
    watched.wall_ahead_ms = 600_000.0 * is_set
    assert watched.look(3) == [(CLOCK, FreezeState.OPEN)] * is_set


def test_without_redis_the_database_is_not_believed(watched: Watched) -> None:
    watched.look(1, ms=OTHERS_MS + 1)
    watched.sql_ahead_ms += 600_000
    watched.redis_ahead_ms = None
    assert watched.look() == [(CLOCK, FreezeState.OPEN)]


def test_nothing_is_cancelled_early_before_the_jump_was_seen(shop: Shop) -> None:
    """The statement itself compares deadlines with the time that the worker expects."""
    order = shop.place()
    guard = Guard(shop.engine, SETTINGS, lambda: None)
    guard.look()
    expected = guard.not_after()
    assert expected is not None
    soon = expected + timedelta(minutes=9)
    with shop.engine.begin() as connection:
        connection.execute(sa.update(unpaid_orders).values(expires_at=soon - timedelta(minutes=10)))
        hour_ago = expected - timedelta(hours=1)
        left = shop.service.expire(connection, [order.id], not_after=hour_ago)
    assert left[order.id] <= 0, "it is due by the database's clock, and still there"
    with autocommit(shop.engine) as connection:
        assert shop.service.expire(connection, [order.id], not_after=guard.not_after()) == {}


def test_what_keeps_an_order_does_not_end_by_a_clock_that_jumped(shop: Shop) -> None:
    order = shop.place()
    with shop.engine.begin() as connection:
        unpaid = connection.execute(sa.select(unpaid_orders)).one()
        passed = {"expires_at": unpaid.expires_at - timedelta(hours=3)}
        passed["kept_until"] = unpaid.expires_at - timedelta(hours=1)
        connection.execute(sa.update(unpaid_orders).values(passed))
    right = unpaid.expires_at - timedelta(hours=2)
    with autocommit(shop.engine) as connection:
        assert shop.service.expire(connection, [order.id], not_after=right).keys() == {order.id}
        assert shop.service.expire(connection, [order.id]) == {}


def test_an_error_of_the_guard_counts_against_no_order(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(error: Exception) -> None:
        def read() -> None:
            raise error

        monkeypatch.setattr(watched.guard, "_read", read)
        watched.guard.not_after()

    raises(ValueError("a bug"))
    with pytest.raises(StorageUnavailable):
        raises(StorageUnavailable("gone"))
