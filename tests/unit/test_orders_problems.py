"""Every error is a problem whose code and title are ours, whatever Python calls its status."""

import json
import re
from typing import Any

import apiflask
import pytest
from flask import abort
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, default_exceptions

from orders.http import problems

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
    app = apiflask.APIFlask(__name__)
    problems.install(app)

    @app.get("/")
    def view() -> ResponseReturnValue:
        raise error

    response = app.test_client().get("/")
    assert response.content_type == "application/problem+json"
    body = json.loads(response.get_data())
    assert body["status"] == response.status_code
    return body


def raised(status: int) -> HTTPException:
    with pytest.raises(HTTPException) as error:
        abort(status)
    return error.value


def test_no_code_changes() -> None:
    assert {status: code for status, (code, _) in problems.NAMES.items()} == CODES


def test_a_title_reads_as_its_code() -> None:
    for code, title in problems.NAMES.values():
        assert re.sub("[^a-z]", "_", title.replace("'", "").lower()) == code
        assert title == title.strip()
        assert title[0].isupper()


def test_every_status_that_can_be_sent_has_a_name() -> None:
    """The service's own, and those that Werkzeug and APIFlask, which allows no others, raise."""
    assert {*map(int, problems.STATUS.values()), *default_exceptions} <= problems.NAMES.keys()


@pytest.mark.parametrize("status", sorted(default_exceptions))
def test_a_librarys_error_has_the_code_and_title_of_its_status(status: int) -> None:
    for error in (raised(status), apiflask.HTTPError(status)):
        body = answered(error)
        assert (body["code"], body["title"]) == problems.NAMES[status]


def test_an_unnamed_status_is_a_problem_all_the_same() -> None:
    body = answered(Unheard("what is this"))
    assert body == {
        "type": "about:blank",
        "title": "Error",
        "status": 499,
        "code": "error",
        "detail": "what is this",
    }
