"""What the feature's page says is run, as it stands there."""

import json
import re
from pathlib import Path

import pytest

from devtools import accounts
from devtools.processes import free_port, wait_until
from devtools.service import Service
from tests.kit.pages import INDEX, bash, page, the_block

PAGE = page("orders/features/providers/README.md")


@pytest.mark.slow
def test_the_page_works_as_it_is_pasted(tmp_path: Path) -> None:
    with Service(tmp_path / "service", free_port()) as service:
        pasted(service, tmp_path)


def pasted(service: Service, tmp_path: Path) -> None:
    key = accounts.create_key(service.env, "shop", "orders", "payments", "ops")
    local = service.base_url.removeprefix("http://")
    session = re.split(r"\n\n", the_block("sh", "curl -X PUT", INDEX).strip())
    number = iter(range(9))

    def paste(script: str, **values: str) -> str:
        script = re.sub(r"\bID\b", values.pop("ID", ""), script).replace("localhost:8000", local)
        return bash(f"cd {tmp_path}\n{script}", {"KEY": key, **values})

    def order() -> str:
        placing = session[1].replace("first", f"key-{next(number)}").replace(":15}", ":900}")
        placed = paste(f"{session[0]}\n{placing}")
        return str(json.loads(placed[placed.rindex('{"id"') :])["id"])

    attempt = the_block("sh", "payment-attempts", PAGE)
    assert '"outcome":null' in paste(attempt, ID=order())
    add, listed, rotate, revoke = the_block("sh", "providers add", PAGE).strip().splitlines()
    path, secret = bash(add, service.env).split()
    endpoint_id = path.split("/")[3]
    new = bash(rotate.replace("ID", endpoint_id), service.env).strip()
    assert endpoint_id in bash(listed, service.env)

    (tmp_path / "sign.py").write_text(the_block("python", "hmac", PAGE))
    webhook = the_block("sh", "sign.py", PAGE)
    paid = order()
    for signed_with, outcome in ((secret, "applied"), (new, "replayed")):
        assert f'"outcome":"{outcome}"' in paste(
            webhook, ID=paid, ENDPOINT=path, SECRET=signed_with
        )
    twice = webhook.replace("tx-2", "tx-3")
    assert '"outcome":"refund_due"' in paste(twice, ID=paid, ENDPOINT=path, SECRET=new)

    unread = webhook.replace('"reference":"tx-2"', '"reference":"tx 2"')
    assert '"outcome":"waiting"' in paste(unread, ID=paid, ENDPOINT=path, SECRET=new)
    inbox, replay, dismiss = the_block("sh", "providers inbox", PAGE).strip().splitlines()
    waiting = bash(inbox, service.env).splitlines()[1].split()[0]
    assert "waiting" in bash(replay.replace("ID", waiting), service.env)
    assert "dismissed" in bash(dismiss.replace("ID", waiting), service.env)

    bash(revoke.replace("ID", endpoint_id), service.env)
    refused = re.compile("signature_invalid")
    wait_until(
        lambda: refused.search(paste(webhook, ID=paid, ENDPOINT=path, SECRET=new)),
        "the endpoint to be forgotten",
    )
