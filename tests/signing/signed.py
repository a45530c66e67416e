"""Who a message is from."""

from orders.features.signing.signatures import verify
from tests.kit.receiver import Received


def is_signed(message: Received, secret: str) -> bool:
    """Whether it says so, now being when it was sent."""
    sent = int(message.headers["webhook-timestamp"])
    try:
        return verify(message.headers, message.body, [secret], now_seconds=sent) == message.id
    except Exception:  # noqa: BLE001  a secret of another kind is a no
        return False
