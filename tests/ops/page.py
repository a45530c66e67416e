"""The operators' page, asked as its script asks."""

import re
from typing import Any
from xml.etree.ElementTree import Element, fromstring

from werkzeug.test import TestResponse

from orders.features.parts import Problem
from orders.queues import QUEUE
from tests.kit.api import Api


class View:
    """A view's elements by their ids. Its tags are nested and closed as in XML."""

    def __init__(self, html: str) -> None:
        root = fromstring(f"<view>{html}</view>")  # noqa: S314  our own
        self._ids = {each.get("id", ""): each for each in root.iter()}

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

    def __getitem__(self, id_: str) -> Element:
        return self._ids[id_]

    def text(self, id_: str) -> str:
        return _text(self[id_])

    def texts(self, id_: str, path: str = "*") -> list[str]:
        """The texts of what an element contains."""
        return [*map(_text, self[id_].findall(path))]

    def ids(self, id_: str) -> list[str]:
        """Whose rows a table has."""
        return [each.get("id", "").partition("-")[2] for each in self[id_]]

    def tiles(self) -> dict[str, list[str]]:
        """The value and the note of each counter."""
        return {_text(name): [_text(value), _text(note)] for name, value, note in self["tiles"]}


def _text(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


class Page:
    """The page in a browser: it sends what a script of ours sends."""

    def __init__(self, api: Api, key: str = "ops") -> None:
        self.api = api
        self.key = key

    def ask(self, method: str, path: str, body: Any = None) -> TestResponse:
        sent = {"Authorization": f"Bearer {self.api.keys[self.key]}"}
        return self.api.http.open(
            f"/ops/{path}", method=method, json=body, headers=sent, buffered=True
        )

    def get(self, path: str = "overview", status: int = 200) -> View:
        answer = self.ask("GET", f"view/{path}")
        assert (answer.status_code, answer.mimetype) == (status, "text/html"), answer.get_data()
        return View(answer.text)

    def why(self, order_id: str) -> list[str]:
        """Why an order is unpaid: what follows its six facts."""
        return self.get(f"order/{order_id}").texts("order-facts", "dd")[6:]

    def problems(self, like: str = "") -> list[Problem]:
        """Those whose text begins like this."""
        found = []
        for notice in self.get()["notices"]:
            level, entry = notice.get("class", ""), notice[1].get("href", "").partition("=")[2]
            found.append(Problem(level.removeprefix("notice "), _text(notice[0]), entry))
        return [each for each in found if re.match(like, each.text)]

    def queue(self, name: str = QUEUE) -> list[str]:
        """Its state; how many tasks are scheduled, due, leased and dead; and when the next one is due."""
        return self.get().texts(f"queue-{name}")[1:-1]
