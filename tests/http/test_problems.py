"""Every error is a problem whose code and title are ours, whatever Python calls its status."""

import json
from types import SimpleNamespace
from typing import Any

import flask
import pytest
from werkzeug.exceptions import HTTPException, default_exceptions

from orders import errors
from orders.errors import OrderError
from orders.http import problems
from tests.kit.errors import EVERY
from worker.log import Reminder

#: What clients were promised. Only ever added to.
CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "request_timeout",
    409: "conflict",
    410: "gone",
    411: "length_required",
    412: "precondition_failed",
    413: "request_entity_too_large",
    414: "request_uri_too_long",
    415: "unsupported_media_type",
    416: "requested_range_not_satisfiable",
    417: "expectation_failed",
    418: "im_a_teapot",
    421: "misdirected_request",
    422: "unprocessable_entity",
    423: "locked",
    424: "failed_dependency",
    428: "precondition_required",
    429: "too_many_requests",
    431: "request_header_fields_too_large",
    451: "unavailable_for_legal_reasons",
    500: "internal_server_error",
    501: "not_implemented",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "gateway_timeout",
    505: "http_version_not_supported",
}


class Unheard(HTTPException):
    """A status that nobody has named."""

    code = 499


def answered(error: Exception) -> Any:
    """What an application says when a view raises ``error``."""
    app = flask.Flask(__name__)
    app.extensions["orders"] = SimpleNamespace(outage=Reminder())
    problems.install(app)

    @app.get("/")
    def view() -> str:
        raise error

    response = app.test_client().get("/")
    assert response.content_type == "application/problem+json"
    body = json.loads(response.get_data())
    assert body["status"] == response.status_code
    return body


def test_no_code_of_a_librarys_error_changes() -> None:
    found = {status: answered(kind())["code"] for status, kind in default_exceptions.items()}
    assert found == {status: CODES[status] for status in default_exceptions}


def test_an_unnamed_status_is_a_problem_all_the_same() -> None:
    body = answered(Unheard("what is this"))
    assert body == {
        "type": "about:blank",
        "title": "Error",
        "status": 499,
        "code": "error",
        "detail": "what is this",
    }


def test_every_error_that_a_request_can_meet_has_a_status() -> None:
    # Only a worker asks gateways, and without settings there is no service.
    elsewhere = {"answer_invalid", "gateway_unavailable", "settings_invalid"}
    assert {each.code for each in EVERY if problems.status_of(each) == 500} <= elsewhere
    assert len({each.code for each in EVERY}) == len(EVERY)
    assert all(each.__doc__ for each in EVERY)


def test_what_time_mends_says_when_to_come_back() -> None:
    mends = {each for each in EVERY if each.retry_after}
    assert {each for each in EVERY if problems.status_of(each) in (429, 503)} <= mends
    assert mends >= {errors.KeyInFlight, errors.StorageUnavailable}
    assert errors.OutOfStock.retry_after is None


@pytest.mark.parametrize("outage", errors.StorageUnavailable.__subclasses__())
def test_to_a_client_all_outages_of_the_database_are_one(outage: type[OrderError]) -> None:
    body = answered(outage("what the driver says of its server"))
    assert (body["status"], body["code"]) == (503, "storage_unavailable")
    assert body["detail"] == problems.UNAVAILABLE
