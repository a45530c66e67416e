"""The operators' page, asked as its script asks."""

from typing import Any

from werkzeug.test import TestResponse

from orders.queues import QUEUE
from tests.kit.api import Api


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

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.get_data()
        return answer.json

    def queue(self, name: str = QUEUE) -> Any:
        [found] = [each for each in self.get("state")["redis"]["queues"] if each["name"] == name]
        return found
