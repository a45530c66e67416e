"""What the feature's page says is run, as it stands there."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from devtools.processes import Process, free_port, wait_until
from tests.kit.pages import page, the_block

PAGE = page("orders/features/traces/README.md")


@pytest.mark.slow
def test_make_run_traces_as_the_page_says(tmp_path: Path) -> None:
    port, log, data = free_port(), tmp_path / "run.log", tmp_path / "data"
    env = {"PORT": str(port), "DATA": str(data), "OTEL_TRACES_EXPORTER": "console"}
    run = Process([sys.executable, "-m", "devtools.run"], log, env)
    wait_until(lambda: "Cancellations appear" in log.read_text(), "the session")
    [key] = re.findall(r"export KEY=(\S+)", log.read_text())
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as shop:
        mug = {"on_hand": 10, "price_minor": 1250, "currency": "EUR"}
        assert shop.put("/v1/stock/mug", json=mug).status_code in (200, 201)
    place = the_block("sh", "traceparent", PAGE).replace("localhost:8000", f"127.0.0.1:{port}")
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
