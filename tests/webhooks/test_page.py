"""What the feature's page says is run, as it stands there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from devtools import accounts
from devtools.processes import free_port, wait_until
from devtools.service import Service
from tests.kit.pages import INDEX, bash, page, the_block
from tests.kit.receiver import receiving

PAGE = page("orders/features/webhooks/README.md")


@pytest.mark.slow
def test_webhooks_are_received_as_the_page_says(tmp_path: Path) -> None:
    pasted: dict[str, Any] = {}
    exec(the_block("python", "is_genuine", PAGE), pasted)  # noqa: S102  our own page
    subscribe = the_block("sh", "v1/webhooks", PAGE)
    stock, place, *_ = the_block("sh", "curl -X PUT", INDEX).split("\n\n")
    settings = {"WEBHOOK_ALLOW_PRIVATE": "1"}
    with Service(tmp_path, free_port(), settings) as service, receiving() as endpoint:
        key = accounts.create_key(service.env, "page", "orders", "payments", "ops")
        script = "\n".join([subscribe, stock, place.replace(":15}", ":1}")])
        script = script.replace("localhost:8000", service.base_url.removeprefix("http://"))
        output = bash(script.replace("https://shop.example/hooks", endpoint.url), {"KEY": key})
        wait_until(lambda: endpoint.messages, "the order's cancellation")
    [secret] = re.findall(r'"secret":"(\w+[^"]+)"', output)
    message = endpoint.messages[0]
    example = json.loads(the_block("json", "order.cancelled", PAGE))
    assert message.type == example["type"]
    assert message.json.keys() == example.keys()
    assert message.json["data"].keys() == example["data"].keys()
    assert pasted["is_genuine"](message.headers, message.body, secret)
    assert not pasted["is_genuine"](message.headers, message.body + b" ", secret)
