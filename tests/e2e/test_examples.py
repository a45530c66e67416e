"""The demo and ``make run``, as a newcomer runs them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import httpx
import pytest

from devtools import accounts, processes
from devtools.processes import ROOT, Process, free_port, wait_until
from devtools.service import Service
from examples.provider import DELAYS, PaymentProvider
from orders.webhooks.signatures import new_secret, verify
from tests.clock import bound
from tests.e2e.pages import MONITORING, the_block


@pytest.mark.slow
@pytest.mark.clock
def test_the_demo_plays_and_every_outcome_is_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--patience", str(bound(1))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count(" ok ") == 18
    assert "in a signed webhook" in done.stdout
    assert "All as it should be." in done.stdout
    shown = the_block("", "kill -9")
    assert {*without_figures(shown)} <= {*without_figures(done.stdout)}


def without_figures(text: str) -> list[str]:
    """The lines of the demo, without the figures that differ each time."""
    return [re.sub(r"[0-9.]+", "N", line).strip() for line in text.splitlines()]


@pytest.mark.slow
def test_the_demo_fails_when_an_outcome_is_wrong(tmp_path: Path) -> None:
    with Service(tmp_path, free_port()) as service:
        processes.run(["worker", "pause"], service.env)
        key = accounts.create_key(service.env, "demo", "orders", "payments", "ops")
        command = ["examples.demo", "--base-url", service.base_url, "--api-key", key]
        demo = processes.python(command, {}, tmp_path / "demo.log")
        assert demo.wait(120) == 1
    assert "WRONG waited 10 s for a cancellation" in (tmp_path / "demo.log").read_text()


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


@pytest.mark.slow
def test_the_demo_pays_with_its_key_where_it_has_no_provider(tmp_path: Path) -> None:
    with Service(tmp_path, free_port()) as service:
        key = accounts.create_key(service.env, "demo", "orders", "payments", "ops")
        path, secret = accounts.add_provider(service.env, "demo", "demo")
        demo = ["examples.demo", "--base-url", service.base_url, "--api-key", key]
        plain = processes.run([*demo, "--patience", str(bound(1))], {})
        signed = processes.run([*demo, "--patience", str(bound(1)), "--provider", path, secret], {})
    assert (plain.count(" ok "), "webhook" in plain) == (10, False)
    assert (signed.count(" ok "), "webhook" in signed) == (11, True)


@pytest.mark.slow
def test_make_run_prints_a_session_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "run.log"
    env = {"PORT": str(port), "DATA": str(tmp_path / "data")}
    run = Process([sys.executable, "-m", "devtools.run"], log, env)
    wait_until(lambda: "curl" in log.read_text(), "the session")
    text = log.read_text()
    assert re.search(r"export KEY=\S{60,}", text)
    assert f"http://localhost:{port}/ops" in text
    for name in ("api.log", "worker.log", "valkey/valkey.log"):
        assert f"{tmp_path}/data/{name}" in text
        assert (tmp_path / "data" / name).exists()
    [exports] = re.findall(r"export (REDIS_URL=\S+ DATABASE_URL=\S+)\n", text)
    stats = processes.run(
        ["worker", "stats"], dict(pair.split("=", 1) for pair in exports.split(" "))
    )
    assert "order-timeout" in stats
    with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as response:
        assert response.status == 200

    run.signal(signal.SIGINT)

    assert run.wait() == 0
    assert "Stopped." in log.read_text()
    assert _with_environment(f"DATA={tmp_path}/data") == []
    assert '"stuck": []' in (tmp_path / "data" / "worker.log").read_text()


@pytest.mark.slow
def test_make_run_shows_cancellations_and_their_traces(
    tmp_path: Path,
) -> None:
    """As docs/monitoring.md has it, on another port."""
    port, log, data = free_port(), tmp_path / "run.log", tmp_path / "data"
    env = {"PORT": str(port), "DATA": str(data), "OTEL_TRACES_EXPORTER": "console"}
    run = Process([sys.executable, "-m", "devtools.run"], log, env)
    wait_until(lambda: "Cancellations appear" in log.read_text(), "the session")
    [key] = re.findall(r"export KEY=(\S+)", log.read_text())
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as shop:
        mug = {"on_hand": 10, "price_minor": 1250, "currency": "EUR"}
        assert shop.put("/v1/stock/mug", json=mug).status_code in (200, 201)
    place = the_block("sh", "traceparent", MONITORING).replace(
        "localhost:8000", f"127.0.0.1:{port}"
    )
    place = place.replace("curl ", "curl --fail -H 'X-Request-ID: by-hand-1' ")
    placed = subprocess.run(
        ["bash", "-c", place],  # noqa: S607
        env={**os.environ, "KEY": key},
        capture_output=True,
        check=True,
    )
    order_id = json.loads(placed.stdout)["id"]
    line = re.compile(rf"^\d\d:\d\d:\d\d  order {order_id} cancelled, \d+ \w+ after", re.MULTILINE)
    wait_until(lambda: line.search(log.read_text()), "the cancellation to be shown")

    run.signal(signal.SIGINT)

    assert run.wait() == 0
    # Both processes were asked to stop, and sent what they still had.
    [trace_id] = set(re.findall(r"traceparent: 00-(\w+)-", place))
    worker_log = (data / "worker.log").read_text()
    assert f'"0x{trace_id}"' in (data / "api.log").read_text()
    assert f'"0x{trace_id}"' in worker_log
    [said] = [json.loads(each) for each in worker_log.splitlines() if "order cancelled" in each]
    assert (said["order"], said["request_id"]) == (order_id, "by-hand-1")
    assert said.pop("trace_id") == trace_id
    assert [*said] == [*json.loads(the_block("json", "order cancelled", MONITORING))]


@pytest.mark.slow
def test_make_run_says_so_when_its_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        log = tmp_path / "run.log"
        env = {"PORT": str(port), "DATA": str(tmp_path / "data")}
        run = Process([sys.executable, "-m", "devtools.run"], log, env)
        assert run.wait() == 1
        assert f"port {port} is taken" in log.read_text()
        made = tmp_path / "venv"
        told = subprocess.run(
            ["make", "run", f"PORT={port}", f"VENV={made}"],  # noqa: S607  whatever make there is
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"port {port} is taken: make run PORT={port + 1}" in told.stderr
        assert not made.exists(), "before anything is installed"
    assert _with_environment(f"DATA={tmp_path}/data") == []


def _with_environment(variable: str) -> list[str]:
    """The processes that have this variable; where there is no /proc, none are found."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [command for command in found if str(os.getpid()) not in command]
