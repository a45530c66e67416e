"""Which errors of a database are an outage, for the engine's records and for the order service alike."""

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from orders.db.errors import retried, translated
from orders.errors import StorageUnavailable, StorageUnfit
from worker import DeadLetter
from worker.records.outages import CONFLICT_RETRIES, is_transient

OUTAGES = [
    *("08000", "08006", "53100", "53200", "53300", "57014", "57P01", "57P02", "57P03"),
    *("25006", "25P03", "40001", "40P01", "55P03"),
]
NONE = ["23505", "23503", "22P02", "42601", "42883", "25P02", "55006", "XX000"]


class Refused(Exception):
    """What a driver raises."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("refused")
        self.sqlstate = sqlstate


def error(sqlstate: str | None) -> DBAPIError:
    return OperationalError("SELECT 1", {}, Refused(sqlstate))


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [(each, True) for each in OUTAGES] + [(each, False) for each in NONE] + [(None, True)],
)
def test_an_error_is_an_outage_by_its_code(sqlstate: str | None, *, expected: bool) -> None:
    assert is_transient(error(sqlstate)) is expected
    with pytest.raises(StorageUnavailable if expected else DBAPIError), translated():
        raise error(sqlstate)


def test_a_missing_right_says_what_to_grant() -> None:
    assert not is_transient(error("42501")), "the engine's records ask their probe"
    with pytest.raises(StorageUnfit, match=r"refused.*docs/install.md"), translated():
        raise error("42501")


def test_a_lost_connection_and_an_empty_pool_are_outages() -> None:
    lost = IntegrityError("SELECT 1", {}, Refused("23505"), connection_invalidated=True)
    assert is_transient(lost)
    assert is_transient(PoolTimeout())
    assert not is_transient(IntegrityError("SELECT 1", {}, Refused(None)))


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_lost_conflict_is_retried_and_then_raised(sqlstate: str) -> None:
    calls: list[None] = []

    @retried
    def place(wins_at: int) -> int:
        calls.append(None)
        if len(calls) < wins_at:
            with translated():
                raise error(sqlstate)
        return len(calls)

    assert place(CONFLICT_RETRIES + 1) == CONFLICT_RETRIES + 1
    calls.clear()
    with pytest.raises(StorageUnavailable):
        place(CONFLICT_RETRIES + 2)
    assert len(calls) == CONFLICT_RETRIES + 1


@pytest.mark.parametrize(
    "raised", [error("08006"), error("55P03"), ValueError("no"), DeadLetter(error("40001"))]
)
def test_nothing_but_a_lost_conflict_is_retried(raised: Exception) -> None:
    calls: list[None] = []

    @retried
    def place() -> None:
        calls.append(None)
        raise raised

    with pytest.raises(type(raised)):
        place()
    assert len(calls) == 1
