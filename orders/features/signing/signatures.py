"""Signatures of messages, according to the Standard Webhooks specification 1.0.

What is signed is ``id.timestamp.body`` with HMAC-SHA256. A secret is ``whsec_`` and base64.
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping

from orders.features.signing.errors import SignatureInvalid

PREFIX = "whsec_"
#: The specification asks for 24 to 64.
SECRET_BYTES = 32
#: How far a message's timestamp may be from now, either way. A captured one is useless afterwards.
TOLERANCE_SECONDS = 300
TIMESTAMP = re.compile("[0-9]{1,15}")
#: How many signatures a message may have; each rotation within a day adds one. Anybody may send a
#: header of thousands.
MAX_SIGNATURES = 10


def new_secret() -> str:
    """A secret for signing, to be shown once to the receiver."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signed(
    message_id: str, body: bytes, keys: Iterable[str], *, now_seconds: float
) -> dict[str, str]:
    """The headers of a message. During a rotation it is signed with several secrets."""
    timestamp = str(int(now_seconds))
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(_signature(key, message_id, timestamp, body) for key in keys),
    }


def verify(
    headers: Mapping[str, str], body: bytes, keys: Iterable[str], *, now_seconds: float
) -> str:
    """Return the id of a message that was signed with one of the secrets within the replay window.

    Raises SignatureInvalid, which does not say which part was wrong.
    """
    message_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "").split(" ", MAX_SIGNATURES)[:MAX_SIGNATURES]
    fresh = (
        TIMESTAMP.fullmatch(timestamp) is not None
        and abs(now_seconds - int(timestamp)) <= TOLERANCE_SECONDS
    )
    expected = [_signature(key, message_id, timestamp, body).encode() for key in keys]
    # Every pair is compared, so that the time taken reveals nothing.
    matches = [hmac.compare_digest(mine, each.encode()) for mine in expected for each in given]
    if not (message_id and fresh and any(matches)):
        raise SignatureInvalid
    return message_id


def _signature(key: str, message_id: str, timestamp: str, body: bytes) -> str:
    text = f"{message_id}.{timestamp}.".encode() + body
    try:
        secret = base64.b64decode(key.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("a secret is whsec_ and base64") from error
    return "v1," + base64.b64encode(hmac.digest(secret, text, hashlib.sha256)).decode()
