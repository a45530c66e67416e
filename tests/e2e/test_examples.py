"""The demo and ``make run``, as a newcomer runs them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from devtools import accounts, processes
from devtools.processes import ROOT, Process, free_port, wait_until
from devtools.service import Service
from tests.kit.clock import bound
from tests.kit.pages import MONITORING, bash, the_block


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
    assert done.stdout.count(" ok ") >= 17
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


@pytest.mark.slow
def test_the_demo_plays_against_a_running_service(tmp_path: Path) -> None:
    with Service(tmp_path, free_port()) as service:
        key = accounts.create_key(service.env, "demo", "orders", "payments", "ops")
        demo = ["examples.demo", "--base-url", service.base_url, "--api-key", key]
        assert processes.run([*demo, "--patience", str(bound(1))], {}).count(" ok ") == 10


@pytest.mark.slow
def test_make_run_prints_a_session_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "run.log"
    env = {"PORT": str(port), "DATA": str(tmp_path / "data")}
    run = Process([sys.executable, "-m", "devtools.run"], log, env)
    wait_until(lambda: "curl" in log.read_text(), "the session")
    text = log.read_text()
    assert re.search(r"export KEY=\S{60,}", text)
    assert f"http://localhost:{port}\n" in text
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

    [pasted] = re.findall(r"^  (export KEY=.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    bash(pasted.replace('_seconds":15', '_seconds":1'), {})
    wait_until(lambda: "ms after its deadline" in log.read_text(), "the cancellation to be shown")

    run.signal(signal.SIGINT)

    assert run.wait() == 0
    assert "Stopped." in log.read_text()
    assert _with_environment(f"DATA={tmp_path}/data") == []
    worker_log = (tmp_path / "data" / "worker.log").read_text()
    assert '"stuck": []' in worker_log
    shown = json.loads(the_block("json", "order cancelled", MONITORING))
    [said] = [json.loads(each) for each in worker_log.splitlines() if "order cancelled" in each]
    assert said.keys() == shown.keys()


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
