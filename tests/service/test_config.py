"""The environment is read once, checked as a whole, and kept to itself."""

import re
from dataclasses import FrozenInstanceError
from traceback import format_exception
from typing import Any

import pytest

from devtools.processes import ROOT
from orders.config import MAX_BATCH_SIZE, Settings, variables
from orders.errors import SettingsInvalid

URLS = {
    "DATABASE_URL": "postgresql+psycopg://shop:s3cret@db/shop",
    "REDIS_URL": "redis://:s3cret@cache:6379/0",
}


def refused(environ: dict[str, str]) -> str:
    with pytest.raises(SettingsInvalid) as error:
        Settings.from_env(environ)
    return str(error.value)


def test_the_urls_are_enough() -> None:
    settings = Settings.from_env(URLS)
    assert settings == Settings.of(database_url=URLS["DATABASE_URL"], redis_url=URLS["REDIS_URL"])
    assert settings.order_timeout_seconds == 1800


def another(value: Any) -> Any:
    """A value that is allowed, too."""
    match value:
        case None:
            return 9000
        case bool():
            return not value
        case str():
            return f"{value}x"
    return value + 1


def value(settings: Settings, name: str) -> Any:
    kind = variables()[name]
    return getattr(settings if kind is Settings else settings[kind], name)


@pytest.mark.parametrize("name", variables())
def test_every_setting_can_be_set(name: str) -> None:
    wanted = another(value(Settings.from_env(URLS), name))
    assert value(Settings.from_env({**URLS, name.upper(): str(wanted)}), name) == wanted


def test_everything_that_is_wrong_is_named_at_once() -> None:
    message = refused(
        {
            "REDIS_URL": "  ",
            "BATCH_SIZE": "many",
            "MAX_FAILURES": "0",
            "LEASE_SECONDS": "nan",
            "SWEEP_SECONDS": "inf",
            "WEBHOOK_ALLOW_PRIVATE": "maybe",  # <webhooks or providers/>
        }
    )
    assert "DATABASE_URL is not set" in message
    assert "REDIS_URL is not set" in message
    assert "BATCH_SIZE is 'many': Input should be a valid integer" in message
    assert "MAX_FAILURES is '0': Input should be greater than or equal to 1" in message
    assert "LEASE_SECONDS is 'nan': Input should be a finite number" in message
    assert "SWEEP_SECONDS is 'inf': Input should be a finite number" in message
    # <webhooks or providers>
    assert "WEBHOOK_ALLOW_PRIVATE is 'maybe': Input should be a valid boolean" in message
    # </webhooks or providers>


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ORDER_TIMEOUT_SECONDS", "0"),
        ("ORDER_TIMEOUT_SECONDS", "-1"),
        ("BATCH_SIZE", "1.5"),
        ("BATCH_SIZE", "0"),
        ("BATCH_SIZE", str(MAX_BATCH_SIZE + 1)),
        ("METRICS_PORT", "65536"),  # <metrics/>
        ("DATABASE_POOL_SIZE", "0"),
        ("WEBHOOK_THREADS", "1"),  # <webhooks/>
        ("MAX_UNPAID_ORDERS", "-1"),  # <limits/>
        ("MAX_HELD_PIECES", "1e3"),  # <limits/>
        ("MAX_DELIVERIES", "2"),
        ("LOCK_TIMEOUT_SECONDS", "0.05"),
        ("LEASE_SECONDS", "ten"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(name: str, text: str) -> None:
    assert name in refused({**URLS, name: text})


@pytest.mark.parametrize(
    ("own", "rule"),
    [
        (
            {"ORDER_TIMEOUT_SECONDS": "9", "ORDER_TIMEOUT_MIN_SECONDS": "10"},
            "ORDER_TIMEOUT_MIN_SECONDS <= ORDER_TIMEOUT_",
        ),
        (
            {"ORDER_TIMEOUT_SECONDS": "61", "ORDER_TIMEOUT_MAX_SECONDS": "60"},
            "<= ORDER_TIMEOUT_MAX_SECONDS",
        ),
        ({"STATEMENT_TIMEOUT_SECONDS": "10"}, "STATEMENT_TIMEOUT_SECONDS < LEASE_SECONDS"),
        ({"LOCK_TIMEOUT_SECONDS": "6"}, "LOCK_TIMEOUT_SECONDS <= STATEMENT_TIMEOUT_SECONDS"),
        (
            {"RETRY_BASE_SECONDS": "61", "RETRY_CAP_SECONDS": "60"},
            "RETRY_BASE_SECONDS <= RETRY_CAP_SECONDS",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(own: dict[str, str], rule: str) -> None:
    assert rule in refused({**URLS, **own})


@pytest.mark.parametrize(
    ("own", "effective"),
    [
        ({"LEASE_SECONDS": "2"}, {"statement_timeout_seconds": 1.6, "lock_timeout_seconds": 0.8}),
        ({"LEASE_SECONDS": "60"}, {"statement_timeout_seconds": 4, "lock_timeout_seconds": 2}),
        ({"ORDER_TIMEOUT_SECONDS": "0.5"}, {"order_timeout_min_seconds": 0.5}),
        ({"ORDER_TIMEOUT_SECONDS": "90000"}, {"order_timeout_max_seconds": 90_000}),
        ({"ORDER_TIMEOUT_MAX_SECONDS": "60"}, {"order_timeout_seconds": 60}),
        ({"ORDER_TIMEOUT_MIN_SECONDS": "3600"}, {"order_timeout_seconds": 3600}),
        ({"RETRY_BASE_SECONDS": "90"}, {"retry_cap_seconds": 90}),
    ],
)
def test_a_default_gives_way_to_what_is_set(
    own: dict[str, str], effective: dict[str, float]
) -> None:
    settings = Settings.from_env({**URLS, **own})
    assert {name: getattr(settings, name) for name in effective} == effective


def test_contradictions_too_are_named_all_at_once() -> None:
    message = refused({**URLS, "LOCK_TIMEOUT_SECONDS": "5", "RETRY_CAP_SECONDS": "0.5"})
    assert "LOCK_TIMEOUT_SECONDS" in message
    assert "RETRY_CAP_SECONDS" in message


def test_settings_are_frozen() -> None:
    settings = Settings.from_env(URLS)
    with pytest.raises(FrozenInstanceError):
        settings.batch_size = 1  # type: ignore[misc]


def test_no_secret_is_shown() -> None:
    assert "s3cret" not in repr(Settings.from_env(URLS))
    assert "s3cret" not in refused({**URLS, "BATCH_SIZE": "0"})
    with pytest.raises(SettingsInvalid) as error:
        Settings.from_env({"REDIS_URL": URLS["REDIS_URL"]})
    assert "s3cret" not in "".join(format_exception(error.value)), "nor in a traceback"


def test_the_pages_defaults_are_those_of_the_settings() -> None:
    """Among them what freezes by itself, and for how long."""
    pages = [ROOT / "docs" / "configuration.md", *ROOT.glob("orders/features/*/README.md")]
    row = re.compile(r"^\| `([A-Z_]+)` \| (\d[\d,]*) \|", re.MULTILINE)
    written = dict(found for page in pages for found in row.findall(page.read_text()))
    settings = Settings.from_env(URLS)
    defaults = {name.upper(): value(settings, name) for name in variables()}
    known = {
        name: float(text.replace(",", "")) for name, text in written.items() if name in defaults
    }
    assert len(known) > 8
    assert known == {name: defaults[name] for name in known}
