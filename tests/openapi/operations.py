"""What docs/openapi.json says of each route."""

import json
from typing import Any, NamedTuple

import devtools.openapi
from orders.features.openapi import document as openapi

TEXT = devtools.openapi.text()


DOCUMENT = json.loads(TEXT)


#: Of the queries that require one of several, that one.
ONE_WAY = {"list_payments": ["status=refund_due"]}


class Operation(NamedTuple):
    """A method of a path, and what the document says of it."""

    method: str
    path: str
    said: Any

    @property
    def name(self) -> str:
        return str(self.said["operationId"])

    @property
    def url(self) -> str:
        """Its path, with an id for each parameter, and what its query requires."""
        path, query = self.path, [*ONE_WAY.get(self.name, ())]
        for parameter in self.said["parameters"]:
            value = str(parameter["schema"].get("examples", ["x"])[0])
            path = path.replace(f"{{{parameter['name']}}}", value)
            if parameter["in"] == "query" and parameter["required"]:
                query.append(f"{parameter['name']}={value}")
        return path + "?" * bool(query) + "&".join(query)

    @property
    def headers(self) -> dict[str, str]:
        """Those that it requires."""
        return {
            parameter["name"]: parameter["schema"]["examples"][0]
            for parameter in self.said["parameters"]
            if parameter["in"] == "header" and parameter["required"]
        }

    @property
    def body(self) -> Any:
        """An example, composed of those of the fields; None where it takes none."""
        if "requestBody" not in self.said:
            return None
        return example_of(self.said["requestBody"]["content"][openapi.JSON]["schema"])

    def codes(self) -> set[tuple[int, str]]:
        """Every status and code that the document lists."""
        found = set()
        for status, response in self.said["responses"].items():
            content = resolved(response).get("content", {}).get(openapi.PROBLEM)
            if content is not None:
                codes = content["schema"]["properties"]["code"]["enum"]
                found |= {(int(status), code) for code in codes}
        return found


def example_of(schema: Any) -> Any:  # noqa: PLR0911  one for each kind
    """What may be null is, unless the field itself has an example."""
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema.get("const") or schema["enum"][0]
    kinds = schema.get("anyOf") or schema.get("oneOf") or []
    if {"type": "null"} in kinds:
        return None
    if kinds:
        return example_of(kinds[0])
    if "$ref" in schema:
        return example_of(resolved(schema))
    if schema.get("type") == "array":
        return [example_of(schema["items"])]
    return {name: example_of(each) for name, each in schema["properties"].items()}


OPERATIONS = [
    Operation(method.upper(), path, said)
    for path, item in DOCUMENT["paths"].items()
    for method, said in item.items()
]


def resolved(node: Any) -> Any:
    """What a reference leads to; anything else is itself."""
    if "$ref" not in node:
        return node
    place = DOCUMENT
    for step in node["$ref"].removeprefix("#/").split("/"):
        place = place[step]
    return place
