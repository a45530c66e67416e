"""LOG_LEVEL decides what the worker and the API log, as real processes without SQL and Redis."""

import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from devtools import processes
from devtools.processes import Process, free_port, wait_until
from tests.kit.length import quick_first


def environment(level: str) -> dict[str, str]:
    """Ports where neither PostgreSQL nor Redis is, and a level."""
    redis_url = f"redis://127.0.0.1:{free_port()}/0"
    database_url = f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/none"
    return {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "LOG_LEVEL": level}


def events(process: Process) -> set[str]:
    """What a process has logged so far."""
    return {line["event"] for line in processes.events(process.log)}


@pytest.mark.parametrize(
    ("level", "logged", "silenced"),
    quick_first(
        [
            ("Warning", {"unavailable"}, {"no heartbeat", "started", "stopped"}),
            ("debug", {"no heartbeat", "started", "unavailable", "stopped"}, set()),
            ("", {"started", "unavailable", "stopped"}, {"no heartbeat"}),
        ]
    ),
)
def test_a_worker_logs_what_its_level_lets_through(
    level: str, logged: set[str], silenced: set[str], tmp_path: Path
) -> None:
    worker = processes.worker(environment(level), tmp_path / "worker.log")
    try:
        wait_until(lambda: logged - {"stopped"} <= events(worker), "what it logs at first")
    finally:
        assert worker.stop() == 0
    assert logged <= events(worker)
    assert not silenced & events(worker)


@pytest.mark.parametrize(
    ("level", "logged"), quick_first([("Error", False), ("debug", True), ("warning", True)])
)
def test_the_api_logs_what_its_level_lets_through(
    level: str,
    logged: bool,  # noqa: FBT001  a parameter of the test
    tmp_path: Path,
) -> None:
    port = free_port()
    api = processes.api(environment(level), port, tmp_path / "api.log")
    try:
        wait_until(lambda: _status(port, "/readyz") == 503, "the API to say that it is not ready")
    finally:
        assert api.stop() == 0
    assert ("not ready" in events(api)) == logged


@pytest.mark.parametrize(
    "command",
    quick_first(
        [
            ["worker", "run", "orders.timeouts:flows"],
            ["granian", "--interface", "wsgi", "--factory", "--port", "0", "orders.app:create_app"],
            ["flask", "--app", "orders.app", "keys", "create", "shop", "--scope", "ops"],
        ]
    ),
    ids=lambda command: command[0],
)
def test_no_process_starts_with_an_unknown_level(command: list[str], tmp_path: Path) -> None:
    process = processes.python(command, environment("loud"), tmp_path / "log")
    assert process.wait() == 1
    assert "not 'loud'" in process.log.read_text()


def _status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0
