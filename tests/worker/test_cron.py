"""When the times of a cron expression are, in ordinary nights and in the two when clocks change."""

import random
import zoneinfo
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from worker.runtime.cron import Cron, Occurrence

BERLIN = "Europe/Berlin"
HOUR_MS = 3_600_000


def ms(iso: str, zone: str = BERLIN) -> int:
    """A local time, or one with an offset, in ms since the epoch."""
    at = datetime.fromisoformat(iso)
    return round((at if at.tzinfo else at.replace(tzinfo=ZoneInfo(zone))).timestamp() * 1000)


def walk(cron: Cron, start_ms: int) -> Iterator[Occurrence]:
    """One occurrence after another."""
    while True:
        occurrence = cron.after(start_ms)
        assert occurrence.due_at_ms > start_ms
        yield occurrence
        start_ms = occurrence.due_at_ms


def times(expression: str, start: str, count: int, zone: str = BERLIN) -> list[str]:
    """Some occurrences after a local time, by their ids."""
    return [each.id for each in islice(walk(Cron(expression, zone), ms(start, zone)), count)]


def test_an_occurrence_is_named_by_and_due_at_its_local_time() -> None:
    [id_, due_at_ms] = Cron("0 2 * * *", BERLIN).after(ms("2026-11-21T02:00"))
    assert id_ == "2026-11-22T02:00:00+01:00"
    assert due_at_ms == ms(id_) == ms("2026-11-22T01:00:00+00:00")


@pytest.mark.parametrize(
    ("now", "expected"),
    [(-1, "2026-11-22T02:00:00+01:00"), (0, "2026-11-23T02:00:00+01:00")],
)
def test_the_next_time_is_later_than_now_to_the_millisecond(now: int, expected: str) -> None:
    assert Cron("0 2 * * *", BERLIN).after(ms("2026-11-22T02:00") + now).id == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 9 * * MON-FRI", ["2026-05-04T09:00:00+02:00", "2026-05-05T09:00:00+02:00"]),
        ("0 0 L * *", ["2026-05-31T00:00:00+02:00", "2026-06-30T00:00:00+02:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00+01:00", "2032-02-29T00:00:00+01:00"]),
        ("*/20 * * * * *", ["2026-05-02T12:00:20+02:00", "2026-05-02T12:00:40+02:00"]),
        ("30 2 1 1 *", ["2027-01-01T02:30:00+01:00", "2028-01-01T02:30:00+01:00"]),
    ],
)
def test_expressions_mean_what_they_mean_to_cron(expression: str, expected: list[str]) -> None:
    assert times(expression, "2026-05-02T12:00", 2) == expected


# -- the night that skips an hour: 02:00 is 03:00 ------------------------------------------

SPRING = "2026-03-29T00:00"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 2 * * *", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]),
        ("30 2 * * *", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("10,40 2 * * *", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:10:00+02:00"]),
        ("30 2,3 * * *", ["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]),
        ("0 3 * * *", ["2026-03-29T03:00:00+02:00", "2026-03-30T03:00:00+02:00"]),
    ],
)
def test_a_fixed_time_that_is_skipped_comes_right_after_the_gap(
    expression: str, expected: list[str]
) -> None:
    assert times(expression, SPRING, 2) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/30 2 * * *", ["2026-03-30T02:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("30 * * * *", ["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"]),
        ("0 */2 * * *", ["2026-03-29T04:00:00+02:00", "2026-03-29T06:00:00+02:00"]),
        ("15 30 2 * * *", ["2026-03-30T02:30:15+02:00", "2026-03-31T02:30:15+02:00"]),
    ],
)
def test_with_a_star_or_seconds_a_time_that_is_skipped_does_not_come(
    expression: str, expected: list[str]
) -> None:
    start = SPRING if "30" in expression else "2026-03-29T01:00"
    found = times(expression, start, 3)
    assert found[found.index(expected[0]) :][:2] == expected
    assert not [each for each in found if each.startswith("2026-03-29T02")]


# -- the night that repeats an hour: 03:00 is 02:00 again ----------------------------------

AUTUMN = "2026-10-25T00:00"


@pytest.mark.parametrize("expression", ["30 2 * * *", "30 2-2 * * *"])
def test_a_fixed_time_that_is_repeated_comes_the_first_time_only(expression: str) -> None:
    expected = ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert times(expression, AUTUMN, 2) == expected
    # Whoever asks between the two, and long after the first one, is not sent back.
    for now in ("02:30:00+02:00", "02:00:00+01:00", "02:30:00+01:00", "02:59:59+01:00"):
        assert times(expression, f"2026-10-25T{now}", 1) == expected[1:]


def test_with_a_star_or_seconds_a_time_that_is_repeated_comes_twice() -> None:
    assert times("30 * * * *", "2026-10-25T01:45", 3) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:30:00+01:00",
    ]
    assert times("*/30 2 * * *", AUTUMN, 5) == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-26T02:00:00+01:00",
    ]
    assert times("0 30 2 * * *", AUTUMN, 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
    ]


# -- wherever it is asked, the times are the same ------------------------------------------

#: Changes of an hour and of two; into a repeated midnight; twice around Ramadan.
CHANGES = [
    (BERLIN, "2026-03-29T01:00+00:00"),
    (BERLIN, "2026-10-25T01:00+00:00"),
    ("America/New_York", "2026-11-01T06:00+00:00"),
    ("Antarctica/Troll", "2026-10-25T01:00+00:00"),
    ("Africa/Cairo", "2026-10-29T21:00+00:00"),
    ("America/Havana", "2026-11-01T05:00+00:00"),
    ("Africa/Casablanca", "2026-02-15T02:00+00:00"),
]
EXPRESSIONS = [
    "30 2 * * *",
    "15,45 0-3 * * *",
    "*/20 * * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/30 1 * * FRI",
    "*/30 0 * * *",
    "10 59 23,0,1,2,3 * * *",
]


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_any_two_who_ask_at_any_moment_agree_on_what_is_next(
    zone: str, change: str, expression: str
) -> None:
    cron, rng = Cron(expression, zone), random.Random(change)
    start, end = ms(change) - 5 * HOUR_MS, ms(change) + 5 * HOUR_MS
    assert ZoneInfo(zone).utcoffset(at(zone, start)) != ZoneInfo(zone).utcoffset(at(zone, end))
    in_order = []
    for occurrence in walk(cron, start):
        in_order.append(occurrence)
        if occurrence.due_at_ms > end:
            break
    for now in [rng.randrange(start, end) for _ in range(20)]:
        assert cron.after(now) == next(each for each in in_order if each.due_at_ms > now)


def at(zone: str, now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, ZoneInfo(zone))


# -- what is refused, and where zones come from --------------------------------------------


@pytest.mark.parametrize(
    "expression",
    ["", "0 2 * *", "61 * * * *", "@daily", "0 2 * * * * *", "a b c d e", "*/0 * * * *"],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="cron is an expression"):
        Cron(expression, BERLIN)


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 */31 * MON#2",  # the first is no second Monday
        "*/20 2 * 3 0L",  # the hour that Berlin skips
    ],
)
def test_an_expression_without_any_time_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"Bad day-of-month|no time"):
        Cron(expression, BERLIN)


@pytest.mark.parametrize(
    "zone", ["", "Europe", "Europe/Atlantis", "../zone", "/etc/localtime", "CEST+1"]
)
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="timezone is a name such as"):
        Cron("0 2 * * *", zone)


def test_a_system_without_time_zones_has_them_all_the_same() -> None:
    try:
        zoneinfo.reset_tzpath(to=[])
        ZoneInfo.clear_cache()
        assert times("0 2 * * *", "2026-11-22T00:00+00:00", 1) == ["2026-11-22T02:00:00+01:00"]
    finally:
        zoneinfo.reset_tzpath()
        ZoneInfo.clear_cache()


def test_it_reads_as_it_was_written() -> None:
    assert str(Cron(" 0  2 * * * ", BERLIN)) == "0 2 * * * Europe/Berlin"
