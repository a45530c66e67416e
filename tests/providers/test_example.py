"""The provider of the examples, which the demo plays."""

import time
from collections.abc import Iterator
from io import BytesIO
from urllib.error import URLError
from urllib.request import Request

import pytest

from examples.provider import DELAYS, PaymentProvider
from orders.features.signing.signatures import new_secret, verify


def test_a_provider_goes_on_until_it_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a server that is down at first; a real one is in the demo."""
    order = {"id": "o-1", "total_minor": 250, "currency": "EUR"}
    secret, sent, waited = new_secret(), list[Request](), list[float]()
    answers: Iterator[bytes | OSError] = iter(
        [URLError("refused"), TimeoutError(), b'{"outcome": "applied"}', *[TimeoutError()] * 6]
    )

    def answer(request: Request, timeout: float) -> BytesIO:  # noqa: ARG001  urlopen's
        sent.append(request)
        reply = next(answers)
        if isinstance(reply, OSError):
            raise reply
        return BytesIO(reply)

    monkeypatch.setattr("examples.provider.urlopen", answer)
    monkeypatch.setattr("examples.provider.time.sleep", waited.append)
    provider = PaymentProvider("http://shop.example/webhook", secret)
    message = provider.charge(order)
    assert provider.deliver(message) == "applied"
    assert waited == [*DELAYS[:2]]
    for request in sent:
        headers = {name.lower(): value for name, value in request.header_items()}
        assert request.data == message.body
        known = verify(headers, message.body, [secret], now_seconds=time.time())
        assert known == message.id
    with pytest.raises(TimeoutError):
        provider.deliver(message)
    assert waited[2:] == [*DELAYS]
