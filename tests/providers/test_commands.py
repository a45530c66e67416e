"""python -m orders providers ..."""

import json
import time
from uuid import uuid4

from orders.features.signing.signatures import signed
from tests.kit.api import Api, create, run


def test_a_client_without_providers_has_an_empty_list(bare: Api) -> None:
    create(bare, "--scope", "orders")
    listed = run(bare, "providers", "list", "shop")
    assert (listed.exit_code, len(listed.stdout.splitlines())) == (0, 1)


def ping(api: Api, path: str, secret: str, body: bytes = b'{"type":"ping"}') -> int:
    """The status that a message to a provider's endpoint gets."""
    headers = signed("m-1", body, [secret], now_seconds=time.time())
    return api.http.post(
        path, data=body, headers=headers, content_type="application/json"
    ).status_code


def test_a_provider_is_added_listed_rotated_and_revoked(bare: Api) -> None:
    create(bare, "--scope", "orders")
    path, secret = run(bare, "providers", "add", "shop", "bank").stdout.splitlines()
    assert ping(bare, path, secret) == 200
    new = run(bare, "providers", "rotate", path, "--hours", "1").stdout.strip()
    assert [ping(bare, path, each) for each in (new, secret)] == [200, 200]

    endpoint_id = path.split("/")[3]
    head, row = run(bare, "providers", "list").stdout.splitlines()
    assert head.split("  ")[0] == "ID"
    assert row.split()[:3] == [endpoint_id, "shop", "bank"]
    assert row.endswith("never")
    [line] = run(bare, "providers", "list", "shop", "--json").stdout.splitlines()
    assert json.loads(line)["old_secret_until"]
    for shown in (row, line):
        assert secret not in shown
        assert new not in shown

    revoked = run(bare, "providers", "revoke", endpoint_id)
    assert revoked.stdout == f"{endpoint_id} of shop is revoked\n"
    assert ping(bare, path, new) == 401
    refused = run(bare, "providers", "rotate", endpoint_id)
    assert (refused.exit_code, "is revoked" in refused.stderr) == (1, True)


def test_a_message_that_waits_is_listed_replayed_and_dismissed(bare: Api) -> None:
    create(bare, "--scope", "orders")
    path, secret = run(bare, "providers", "add", "shop", "bank").stdout.splitlines()
    assert ping(bare, path, secret, b"{") == 202
    head, row = run(bare, "providers", "inbox").stdout.splitlines()
    assert head.split() == ["ID", "CLIENT", "PROVIDER", "RECEIVED", "STATUS", "NOTE"]
    assert row.endswith("waiting  The body is not JSON: line 1, column 2.")
    [line] = run(bare, "providers", "inbox", "--json").stdout.splitlines()
    message = json.loads(line)
    assert (message["client"], message["provider"], message["body"]) == ("shop", "bank", "{")
    assert run(bare, "providers", "replay", message["id"]).stdout.splitlines()[-2:] == [head, row]
    assert "settled  dismissed" in run(bare, "providers", "dismiss", message["id"]).stdout
    assert run(bare, "providers", "inbox").stdout == f"{'  '.join(head.split())}\n"
    refused = run(bare, "providers", "replay", str(uuid4()))
    assert (refused.exit_code, "no such message" in refused.stderr) == (1, True)


def test_a_provider_is_asked_at_a_url_that_is_public(bare: Api) -> None:
    create(bare, "--scope", "orders")
    add = ("providers", "add", "shop", "bank", "--close-url")
    refused = run(bare, *add, "http://127.0.0.1/close")
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "not public" in refused.output
    path, _ = run(bare, *add, "https://bank.example/close").stdout.splitlines()
    set_url = ("providers", "close-url", path)
    assert "https://bank.example/2" in run(bare, *set_url, "https://bank.example/2").stdout
    assert "not public" in run(bare, *set_url, "https://localhost/").output
    assert "not asked" in run(bare, *set_url).stdout


def test_a_provider_needs_a_client_and_a_valid_name(bare: Api) -> None:
    refused = run(bare, "providers", "add", "nobody", "bank")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "There is no client of that name." in refused.stderr
    create(bare, "--scope", "orders")
    for name in ("", "a b", "x" * 51):
        assert run(bare, "providers", "add", "shop", name).exit_code == 2
    refused = run(bare, "providers", "revoke", str(uuid4()))
    assert refused.exit_code == 1
    assert "There is no such endpoint" in refused.stderr
    pasted = run(bare, "providers", "rotate", "ID")
    assert pasted.exit_code == 2
    assert "'ID' is not an id: lists and searches show them" in pasted.stderr
    assert len(run(bare, "providers", "list").stdout.splitlines()) == 1
