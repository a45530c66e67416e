"""Freezes over HTTP, on the command line, in metrics and in the doctor's findings."""

import json
from typing import Any
from uuid import uuid4

import pytest
from werkzeug.test import TestResponse

from orders.clients.domain import parted
from orders.features.doctor.doctor import Doctor  # <doctor/>
from orders.features.freezes.service import Freezes
from orders.timeouts import timeout_flow
from tests.kit.api import Api, content, run

WHY = {"reason": "the card terminal is down", "seconds": 3600}


def send(api: Api, method: str, path: str = "", body: Any = None, **headers: str) -> TestResponse:
    return api.send(method, f"/v1/freezes{path}", body, key="ops", headers=headers)


def code(response: Any) -> tuple[int, str]:
    return response.status_code, response.json["code"]


def test_a_freeze_over_http_says_who_why_and_how_long(api: Api) -> None:
    made = send(api, "POST", body={**WHY, "client": "customer"})
    assert made.status_code == 201
    freeze = content(made)
    key_id = parted(api.keys["ops"])[0]
    assert freeze["opened_by"] == f"key {key_id}"
    facts = ("client", "reason", "give_back_seconds", "state", "given_back")
    assert [freeze[name] for name in facts] == [*("customer", WHY["reason"], 300, "open", 0)]
    path = f"/{freeze['id']}"
    assert made.headers["Location"].endswith(path)
    assert content(send(api, "GET", path)) == freeze
    longer = content(send(api, "PATCH", path, {"seconds": 7200}))
    assert longer["ends_at"] > freeze["ends_at"]
    thawed = content(send(api, "DELETE", path))
    assert (thawed["state"], thawed["thawed_by"]) == ("thawing", f"key {key_id}")
    assert content(send(api, "DELETE", path)) == thawed
    assert code(send(api, "PATCH", path, {"seconds": 60})) == (409, "freeze_ended")


def test_a_freeze_is_opened_once_for_each_key(api: Api) -> None:
    first, again = (send(api, "POST", body=WHY, **{"Idempotency-Key": "a"}) for _ in range(2))
    assert content(again) == content(first)
    assert again.headers["Idempotent-Replayed"] == "true"
    send(api, "PATCH", f"/{content(first)['id']}", {"seconds": 60})
    again = send(api, "POST", body=WHY, **{"Idempotency-Key": "a"})
    assert again.headers["Idempotent-Replayed"] == "true", "although it was prolonged"
    for changed in ({"client": "customer"}, {"seconds": 3601}, {"reason": "another"}):
        other = send(api, "POST", body={**WHY, **changed}, **{"Idempotency-Key": "a"})
        assert code(other) == (422, "key_reused")


def test_freezes_are_listed_the_latest_first(api: Api) -> None:
    made = [content(send(api, "POST", body=WHY))["id"] for _ in range(3)]
    first = content(send(api, "GET", "?limit=2"))
    second = content(send(api, "GET", f"?limit=2&cursor={first['next_cursor']}"))
    assert [each["id"] for each in first["data"] + second["data"]] == made[::-1]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({**WHY, "client": "nobody"}, (404, "client_not_found")),
        ({**WHY, "seconds": 86_401}, (422, "validation_error")),
        ({"seconds": 1}, (422, "validation_error")),
    ],
)
def test_what_cannot_be_frozen_is_refused(api: Api, body: Any, refusal: tuple[int, str]) -> None:
    response = send(api, "POST", body=body)
    assert response.status_code == refusal[0]
    assert content(send(api, "GET"))["data"] == []
    missing = f"/{uuid4()}"
    assert code(send(api, "GET", missing)) == code(send(api, "DELETE", missing))
    assert code(send(api, "GET", missing)) == (404, "freeze_not_found")


def test_the_command_line_freezes_and_thaws(api: Api) -> None:
    api.place()
    said = run(api, "freeze", "--reason", "a bad deploy", "--for", "1h", "--client", "customer")
    assert said.exit_code == 0, said.output
    [line] = [each for each in said.stdout.splitlines() if "concerned" in each]
    freeze_id = line.partition(":")[0]
    assert "client customer, until" in line
    assert line.endswith("; 1 orders concerned")
    listed = run(api, "freezes").stdout.splitlines()
    assert freeze_id in listed[1]
    assert "open" in listed[1]
    assert "command line  a bad deploy" in listed[1]
    [row] = run(api, "freezes", "--json").stdout.splitlines()
    assert json.loads(row)["id"] == freeze_id
    assert "is thawing" in run(api, "thaw", freeze_id).stdout
    assert "thawing" in run(api, "freezes", "--all").stdout


@pytest.mark.parametrize(
    "args",
    [
        ("freeze", "--reason", "x", "--for", "soon"),
        ("freeze", "--reason", "x", "--for", "25h"),
        ("freeze", "--reason", "x" * 201, "--for", "1h"),
        ("freeze", "--reason", "two\nlines", "--for", "1h"),
        ("freeze", "--reason", "x", "--for", "1h", "--client", "nobody"),
        ("freeze", "--for", "1h"),
        ("thaw", "everything"),
        ("thaw", str(uuid4())),
    ],
)
def test_a_mistyped_command_freezes_nothing(api: Api, args: tuple[str, ...]) -> None:
    said = run(api, *args)
    assert said.exit_code != 0
    assert "Error: " in said.output
    assert "Traceback" not in said.output
    assert api.services[Freezes].in_force() == []


# <doctor>
def test_doctor_and_stats_say_what_is_frozen(api: Api) -> None:
    def finding() -> Any:
        found = {each.check: each for each in Doctor(api.services.engine).examine()}
        return found["orders.freezes"]

    held = timeout_flow(api.services).held
    assert held is not None
    assert (finding().level, held()) == ("ok", "")
    api.services[Freezes].open("customer", reason="a bad deploy", by="door", seconds=60)
    assert finding().level == "warning"
    assert "client customer until" in finding().summary
    assert "by door: a bad deploy" in finding().summary
    assert held() == finding().summary


# </doctor>
