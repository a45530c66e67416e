"""Each mistake that is planted in the sending of webhooks is found by a search."""

from itertools import product

import pytest

from orders.features.webhooks.turns import Turns
from tests.kit.explorer import Violation, explore
from tests.kit.mistakes import PythonMistake, SqlMistake, planted_in_python, planted_in_sql
from tests.kit.shop import Shop
from tests.webhooks.scenarios import SENDINGS, TURNS
from tests.webhooks.turns import TurnsWorld
from tests.webhooks.world import webhook_world

_OR_NOT = "due_at IS NOT NULL OR now() = "


IN_WEBHOOKS = [
    SqlMistake("due_at = $", f"{_OR_NOT}$", only="attempts + 1"),
    SqlMistake("due_at = $", f"{_OR_NOT}$", only="has_successor"),
    SqlMistake("AND due_at <= ", "AND '-infinity'::timestamptz <= ", only="row_version"),
    SqlMistake("attempts = attempts + 1", "attempts = 1"),
    SqlMistake("earlier.status = 'pending'", "earlier.status = 'dead'"),
    SqlMistake("earlier.subscription_id = ", "earlier.subscription_id != "),
    SqlMistake("earlier.event_id < ", "earlier.event_id > "),
    SqlMistake("earlier.last_attempt_at IS NULL", "true"),
    SqlMistake("next.event_id >= ", "next.event_id < "),
    SqlMistake("next.due_at <= ", "next.due_at > "),
    SqlMistake("AND url = ", "AND url != "),
    SqlMistake("), paused_at = date_trunc", "), created_at = date_trunc", only="SET deleted_at"),
    SqlMistake("AND paused_at IS NULL", "", only="AS head"),
    SqlMistake("IS NOT NULL THEN 'infinity'", "IS NULL THEN 'infinity'"),
    SqlMistake("events = CASE WHEN $", "events = CASE WHEN false AND $"),
    SqlMistake(
        "earlier.event_id < ",
        "earlier.id != webhook_deliveries.id AND earlier.created_at <= webhook_deliveries.created_at AND 0 < ",
    ),
    SqlMistake("CASE WHEN webhook_deliveries.type = ", "CASE WHEN webhook_deliveries.type != "),
    SqlMistake("newer.id > ", "newer.id < "),
    SqlMistake("IF EXISTS", "IF NOT EXISTS", only="written"),
    SqlMistake("wish.type = ANY (events)", "false"),
    SqlMistake("SELECT id, written.type", "SELECT id, 'order.created'"),
    SqlMistake("'order.extended') AND reminds", "'order.paid') AND reminds"),
    SqlMistake("coalesce(expires_at > ", "coalesce(expires_at < ", only="secrets"),
    SqlMistake(
        "SET expires_at = ", "SET expires_at = interval '9 days' + ", only="webhook_secrets"
    ),
]
IN_TURNS = [
    PythonMistake(Turns.take, "self._threads // 2", "self._threads"),
    PythonMistake(Turns.take, "may_be_slow(client_id)", "False"),
    PythonMistake(Turns.take, "in self._waiting:", "in reversed(self._waiting):"),
    PythonMistake(Turns.take, "del self._waiting[client_id, name]", "self._waiting.clear()"),
]


def described(mistake: PythonMistake | SqlMistake) -> str:
    return mistake.describe()


@pytest.mark.parametrize("mistake", IN_TURNS, ids=described)
def test_a_mistake_in_the_turns_is_found(mistake: PythonMistake) -> None:
    with planted_in_python(mistake):
        for threads, line in product((2, 4), TURNS):
            try:
                explore(TurnsWorld(threads), line)
            except Violation:
                return
    pytest.fail("not found")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mistake", IN_WEBHOOKS, ids=described)
def test_a_mistake_in_the_sending_of_webhooks_is_found(
    patient_shop: Shop, mistake: SqlMistake
) -> None:
    for line in SENDINGS:
        with webhook_world(patient_shop) as world, planted_in_sql(patient_shop.engine, mistake):
            try:
                explore(world, line)
            except Violation:
                return
    pytest.fail("not found")
