"""Signatures of webhooks."""

import base64
from typing import Any

import pytest

from orders.features.signing import signatures
from orders.features.signing.errors import SignatureInvalid
from orders.features.signing.signatures import (
    MAX_SIGNATURES,
    TOLERANCE_SECONDS,
    new_secret,
    signed,
    verify,
)

NOW = 1_614_265_330.7
BODY = b'{"test": 2432232314}'


def test_a_signature_is_that_of_the_specification() -> None:
    # The example that the reference implementations share.
    headers = signed(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        BODY,
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        now_seconds=NOW,
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_message_is_known_by_either_secret_of_a_rotation() -> None:
    old, new = new_secret(), new_secret()
    headers = signed("m1", BODY, [new, old], now_seconds=NOW)
    assert verify(headers, BODY, [old], now_seconds=NOW) == "m1"
    assert verify(headers, BODY, [new], now_seconds=NOW) == "m1"
    assert verify(signed("m1", BODY, [old], now_seconds=NOW), BODY, [new, old], now_seconds=NOW)


def test_a_secret_is_as_long_as_the_specification_asks() -> None:
    secret = new_secret()
    assert secret.startswith("whsec_")
    assert 24 <= len(base64.b64decode(secret.removeprefix("whsec_"))) <= 64
    assert secret != new_secret()


@pytest.mark.parametrize("seconds", [-TOLERANCE_SECONDS - 1, TOLERANCE_SECONDS + 1])
def test_a_message_outside_the_replay_window_is_refused(seconds: int) -> None:
    key = new_secret()
    headers = signed("m1", BODY, [key], now_seconds=NOW)
    with pytest.raises(SignatureInvalid):
        verify(headers, BODY, [key], now_seconds=NOW + seconds)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "m2"},
        {"webhook-id": ""},
        {"webhook-timestamp": "1614265331"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "1" * 400},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,\xff"},
        {"webhook-signature": "v2,AAAA v1,AAAA"},
    ],
)
def test_a_message_that_was_changed_is_refused(changed: dict[str, str]) -> None:
    key = new_secret()
    headers = {**signed("m1", BODY, [key], now_seconds=NOW), **changed}
    with pytest.raises(SignatureInvalid):
        verify(headers, BODY, [key], now_seconds=NOW)


def test_another_body_and_another_secret_are_refused() -> None:
    key = new_secret()
    headers = signed("m1", BODY, [key], now_seconds=NOW)
    for body, keys in ((BODY + b" ", [key]), (BODY, [new_secret()]), (BODY, [])):
        with pytest.raises(SignatureInvalid):
            verify(headers, body, keys, now_seconds=NOW)


def test_thousands_of_signatures_cost_one_digest_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [new_secret(), new_secret()]
    headers = signed("m1", BODY, [keys[0]], now_seconds=NOW)
    one = headers["webhook-signature"]
    digests = []
    plain = signatures._signature

    def counted(*values: Any) -> str:
        digests.append(values)
        return plain(*values)

    monkeypatch.setattr(signatures, "_signature", counted)
    headers["webhook-signature"] = " " * 100_000 + one
    with pytest.raises(SignatureInvalid):
        verify(headers, BODY, keys, now_seconds=NOW)
    assert len(digests) == len(keys)
    headers["webhook-signature"] = " ".join(["v1,AAAA"] * (MAX_SIGNATURES - 1) + [one])
    assert verify(headers, BODY, keys, now_seconds=NOW) == "m1"


def test_a_secret_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a secret is whsec_ and base64"):
        signed("m1", BODY, ["whsec_pasted in part"], now_seconds=NOW)
