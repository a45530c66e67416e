"""What every request and response gets at the door."""

import re

import pytest
import sqlalchemy as sa
from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.testing import capture_logs

from tests.kit.api import Api

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def test_every_response_names_its_request(api: Api) -> None:
    names = [
        api.send("GET", path, key=key).headers["X-Request-ID"]
        for path, key in (("/healthz", None), ("/v1/orders", None), ("/v1/orders", "customer"))
    ]
    names += [api.send("GET", "/nowhere").headers["X-Request-ID"]]
    assert all(UUID7.fullmatch(name) for name in names)
    assert len({*names}) == len(names)


@pytest.mark.parametrize("name", ["a", "trace-1.2:3_4", "x" * 64])
def test_a_name_that_the_caller_gave_is_kept(api: Api, name: str) -> None:
    response = api.send("GET", "/v1/orders", headers={"X-Request-ID": name})
    assert response.headers["X-Request-ID"] == name


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\tb", "\u00fc", "a;b"])
def test_a_name_that_could_break_a_log_is_replaced(api: Api, name: str) -> None:
    response = api.send("GET", "/v1/orders", headers={"X-Request-ID": name})
    assert UUID7.fullmatch(response.headers["X-Request-ID"])


def test_what_is_logged_during_a_request_has_its_name(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_more: object) -> None:
        raise sa.exc.InvalidRequestError("a bug")

    monkeypatch.setattr(api.services.orders, "orders", broken)
    with capture_logs(processors=[merge_contextvars]) as logs:
        refused = api.send("GET", "/v1/orders", headers={"X-Request-ID": "trace-1"})
    assert refused.status_code == 500
    assert refused.headers["X-Request-ID"] == "trace-1"
    [line] = [line for line in logs if line["event"] == "unexpected error"]
    assert line["request_id"] == "trace-1"


def test_one_requests_name_is_not_the_nexts(api: Api) -> None:
    api.send("GET", "/healthz", headers={"X-Request-ID": "first"})
    api.send("GET", "/healthz")
    assert get_contextvars().get("request_id") != "first"


# <openapi>
def test_pages_load_nothing_from_elsewhere_and_stand_in_no_frame(api: Api) -> None:
    with api.send("GET", "/docs", key=None) as page:
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'self'; script-src 'self'; " in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["X-Frame-Options"] == "DENY"
        assert page.headers["Referrer-Policy"] == "no-referrer"
    answer = api.send("GET", "/v1/orders")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Security-Policy" not in answer.headers


# </openapi>
