"""What helps in developing: which server's program is started, and what a new service is made of."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from devtools import postgres, processes, valkey
from devtools.new import new
from devtools.processes import ROOT, free_port


def program(folder: Path, name: str) -> str:
    made = folder / name
    made.touch(mode=0o755)
    return str(made)


def test_a_chosen_valkey_is_a_path_or_a_name_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program(tmp_path, "redis-6")
    monkeypatch.setenv("VALKEY_SERVER", made)
    assert valkey.valkey_server() == made
    monkeypatch.setenv("VALKEY_SERVER", "redis-6")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert valkey.valkey_server() == made


def test_a_chosen_valkey_that_is_none_is_an_error_and_no_other_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VALKEY_SERVER", "/nowhere/redis-server")
    with pytest.raises(RuntimeError, match=r"VALKEY_SERVER is /nowhere/redis-server"):
        valkey.valkey_server()


def test_where_no_wheel_fits_a_server_on_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VALKEY_SERVER", raising=False)
    monkeypatch.setattr(valkey, "_in_wheel", lambda *_: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert valkey.redis_62_server() is None
    with pytest.raises(RuntimeError, match="There is no Valkey here"):
        valkey.valkey_server()
    redis = program(tmp_path, "redis-server")
    assert valkey.valkey_server() == redis
    first = program(tmp_path, "valkey-server")
    assert valkey.valkey_server() == first


def test_a_chosen_postgresql_is_a_folder_of_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTGRES_BIN", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"POSTGRES_BIN is .*there is no initdb"):
        postgres.binary("initdb")
    initdb = program(tmp_path, "initdb")
    assert postgres.binary("initdb") == initdb


@pytest.mark.slow
def test_a_new_service_passes_lint_and_types_at_once_and_is_refused_a_name_that_is_taken(
    tmp_path: Path,
) -> None:
    names = ("orders", "worker", "tests", "migrations", "devtools", "examples", "Makefile")
    for name in (each for each in names if (ROOT / each).exists()):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, tmp_path)
    for name in ("pyproject.toml", "alembic.ini"):
        shutil.copy(ROOT / name, tmp_path)
    made = new("seat-hold", tmp_path)
    assert [path.name for path in made][-1] == "test_seat_hold.py"
    for command in ("ruff check .", "ruff format --check .", "mypy seat_hold"):
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for name in ("seat-hold", "worker", "email", "flask", "if", "Seat", "seat hold", "x" * 25, ""):
        with pytest.raises(ValueError, match=r"a name is|already"):
            new(name, tmp_path)


def test_a_valkey_to_try_things_with_runs_until_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "valkey.log"
    server = processes.python(["devtools.valkey", str(port)], {}, log)
    processes.wait_until(lambda: f"REDIS_URL=redis://127.0.0.1:{port}/0" in log.read_text(), "it")
    with redis.Redis.from_url(f"redis://127.0.0.1:{port}/0") as client:
        assert client.ping()
        second = processes.python(["devtools.valkey", str(port)], {}, tmp_path / "second.log")
        assert second.wait() == 1
        assert "did not start" in (tmp_path / "second.log").read_text()
        assert "REDIS_URL" not in (tmp_path / "second.log").read_text()
        assert client.ping()
    server.signal(signal.SIGINT)
    assert server.wait() == 0
