"""Holds every response of the tests to the document: its status, type, headers and body.

The document is made of the routes. That docs/openapi.json is the same, openapi/test_openapi.py says.
"""

import json
import re
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from werkzeug.test import TestResponse

from devtools import openapi

#: Of every response, or of the server's own.
COMMON = {"Content-Type", "Content-Length", "X-Content-Type-Options"}


class Conformance:
    """What the document says of each route."""

    def __init__(self) -> None:
        self._document = json.loads(openapi.text())
        #: By the identity of a schema of the document: making one takes longer than using it.
        self._validators: dict[int, Draft202012Validator] = {}
        self._paths = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), item)
            for path, item in self._document["paths"].items()
        ]

    def check(self, method: str, path: str, response: TestResponse) -> None:
        """Raises AssertionError for a response that the document does not describe."""
        operation = self._operation(method, path)
        if operation is None:
            return
        name, status = operation["operationId"], str(response.status_code)
        said = f"{name} answered {status}: {response.get_data(as_text=True)[:500]}"
        assert status in operation["responses"], f"not documented: {said}"
        documented = self._resolved(operation["responses"][status])
        self._check_headers(response, documented["headers"], said)
        if "content" not in documented:
            assert response.get_data() == b"", said
            return
        [(kind, content)] = documented["content"].items()
        assert response.mimetype == kind, said
        body = json.loads(response.get_data())
        self._check_value(body, content["schema"], said)
        unknown = body.keys() - self._resolved(content["schema"])["properties"].keys()
        assert not unknown, f"{unknown} not documented: {said}"

    def _operation(self, method: str, path: str) -> Any:
        """What the document says of a request; None for what it does not know."""
        plain = path.partition("?")[0]
        for pattern, item in self._paths:
            if pattern.fullmatch(plain) and method.lower() in item:
                return item[method.lower()]
        return None

    def _check_headers(self, response: TestResponse, headers: Any, said: str) -> None:
        documented = {name: self._resolved(header) for name, header in headers.items()}
        missing = {n for n, header in documented.items() if header.get("required")} - {
            *response.headers.keys()
        }
        assert not missing, f"{missing} missing: {said}"
        unknown = {*response.headers.keys()} - {*documented} - COMMON
        assert not unknown, f"{unknown} not documented: {said}"
        for name, header in documented.items():
            for value in response.headers.getlist(name):
                of_type = int(value) if header["schema"]["type"] == "integer" else value
                self._check_value(of_type, header["schema"], f"{name} of {said}")

    def _check_value(self, value: Any, schema: Any, said: str) -> None:
        validator = self._validators.get(id(schema))
        if validator is None:
            whole = {**schema, "components": self._document["components"]}
            validator = Draft202012Validator(whole, format_checker=FormatChecker())
            self._validators[id(schema)] = validator
        error = next(validator.iter_errors(value), None)
        assert error is None, f"{error.message}: {said}"

    def _resolved(self, node: Any) -> Any:
        if "$ref" not in node:
            return node
        place = self._document
        for step in node["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        return place
