"""Reads a request's JSON so that it has exactly one meaning."""

import json
import math
import re
from typing import Any, NoReturn

from flask import Request, current_app
from werkzeug.exceptions import BadRequest, LengthRequired, UnsupportedMediaType

#: How many levels deep a body may be nested. Valid ones have three: an order, its items, an item.
#: The rest lets an invalid body reach validation, which names the wrong field. Python's parser has
#: a limit too, but a different one in each version.
MAX_DEPTH = 20
#: A bracket, or a whole string, whose brackets do not count. An unterminated string extends to the
#: end of the text; otherwise the search would start again at each quote in it.
STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[][{}]', re.DOTALL)


class StrictRequest(Request):
    """A request whose JSON has exactly one meaning: RFC 8259, in UTF-8, an object, no key twice."""

    _whole: bytes | None = None

    def get_json(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Raises UnsupportedMediaType, RequestEntityTooLarge, LengthRequired, BadRequest or ServerBusy."""
        encoding = self.headers.get("Content-Encoding", "identity")
        if (self.mimetype, encoding) != ("application/json", "identity"):
            raise UnsupportedMediaType("Send application/json, without a Content-Encoding.")
        return parse_object(self.whole_body())

    def whole_body(self, came_with: str = "keys") -> bytes:
        """The complete body, read once, within `Hooks.around_reading`.

        Raises RequestEntityTooLarge, LengthRequired, BadRequest or ServerBusy.
        """
        if self._whole is not None:
            return self._whole
        # WSGI does not say whether chunks ended as they should, or the connection did.
        if "HTTP_TRANSFER_ENCODING" in self.environ:
            raise LengthRequired("Send the body whole, with its Content-Length.")
        # WSGI has no timeout either: a slow sender keeps the thread that reads.
        body: bytes = current_app.extensions["orders"].hooks.read(self.get_data, came_with)
        length = self.content_length
        if length is None and body:  # HTTP/2
            raise LengthRequired
        # A connection may end early, and half a body may be a valid one.
        if length is not None and len(body) != length:
            raise BadRequest(f"The body has {len(body)} of {length} bytes.")
        self._whole = body
        return body


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises BadRequest for anything else."""
    try:
        text = body.decode()
        _check_depth(text)
        value = STRICT.decode(text)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: byte {error.start}.") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadRequest(f"The body is not JSON: {place}.") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise BadRequest("The body is not JSON: a number is too long.") from error
    if not isinstance(value, dict):
        raise BadRequest("The body is not a JSON object.")
    return value


def _check_depth(text: str) -> None:
    """Raises BadRequest for more than `MAX_DEPTH` levels, JSON or not.

    Call it before the parser, which recurses. Up to the first syntax error both see the same
    strings and brackets, so the parser never goes deeper than what is counted here.
    """
    depth = 0
    for found in STRING_OR_BRACKET.findall(text):
        depth += (found in "[{") - (found in "]}")
        if depth > MAX_DEPTH:
            raise BadRequest(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise BadRequest("The body is not JSON: an object has the same key twice.")
    return result


def _refuse(constant: str) -> NoReturn:
    raise BadRequest(f"The body is not JSON: {constant} is not a JSON number.")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise BadRequest("The body is not JSON: a number is too large.")
    return number


#: Refuses what RFC 8259 leaves open or forbids, but Python's parser accepts.
STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
