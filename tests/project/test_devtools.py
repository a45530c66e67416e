"""What helps in developing: which server's program is started, and what a new service is made of."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

import psycopg
import pytest
import redis

from devtools import postgres, processes, run, valkey
from devtools.new import repository, subset
from devtools.processes import ROOT, free_port
from tests.kit.length import quick_first


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


def test_a_chosen_valkey_that_is_none_is_an_error(
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


NAMES_TAKEN = ("worker", "email", "flask", "if", "Seat", "seat hold", "x" * 25, "")


def test_a_new_repository_overwrites_nothing(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for target in (tmp_path, taken):
        with pytest.raises(ValueError, match="already exists, and is not an empty folder"):
            repository("zebra-crossing", target)
    for name in NAMES_TAKEN:
        with pytest.raises(ValueError, match=r"a name is|already"):
            repository(name, tmp_path / "new")
    assert [*tmp_path.iterdir()] == [taken]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "NAME is missing: make new NAME=seat-hold IN=../seat-hold"),
        (("NAME=tram-ticket",), "IN is missing, the folder of the new repository: make new "),
    ],
)
def test_make_new_says_what_is_missing(given: tuple[str, ...], says: str, tmp_path: Path) -> None:
    command = ["make", "new", *given, f"VENV={tmp_path / 'venv'}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode != 0
    assert says in made.stdout
    assert [*tmp_path.iterdir()] == []


def test_a_locks_subset_has_all_that_is_needed_and_no_more() -> None:
    lock = (ROOT / "requirements" / "dev.lock").read_text()
    part = subset(lock, ["flask>=3", "redis[hiredis]>=8", "pytest"])
    names = re.findall(r"^([\w.-]+)==", part, re.MULTILINE)
    assert {"flask", "werkzeug", "markupsafe", "redis", "hiredis", "pytest", "colorama"} <= {*names}
    assert not {"hypothesis", "sqlalchemy", "granian"} & {*names}
    assert names == sorted(names)
    assert all(entry in lock for entry in re.split(r"(?m)^(?=\w)", part))
    assert "hiredis" not in subset(lock, ["redis"])


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


#: Starts both servers, says at which ports, and waits.
SERVERS = """
import signal, tempfile
from pathlib import Path
from devtools.postgres import Postgres
from devtools.valkey import Valkey
folder = Path(tempfile.mkdtemp())
print(Postgres().start().port, Valkey(folder).start().port, flush=True)
signal.pause()
"""


def test_a_killed_process_leaves_no_server_behind() -> None:
    command = [sys.executable, "-c", SERVERS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ports = [int(port) for port in child.stdout.readline().split()]
        assert [listens(port) for port in ports] == [True, True]
        child.kill()
    processes.wait_until(lambda: not any(map(listens, ports)), "both servers to end")


def test_waiting_in_vain_shows_the_last_answer() -> None:
    """As of a demo whose routes have been renamed: the service is up, and says what is wrong."""

    def ask() -> None:
        raise HTTPError("http://127.0.0.1/old", 404, "NOT FOUND", Message(), None)

    with pytest.raises(TimeoutError, match="waited 0 s for the API; the last time: HTTP Error 404"):
        processes.wait_until(ask, "the API", seconds=0, ignoring=URLError)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_a_server_to_try_things_with_runs_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "devtools.postgres", str(free_port())]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        [_, url] = child.stdout.readline().partition("#")[0].split("=")
        with psycopg.connect(url.strip().replace("+psycopg", "")) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        child.send_signal(signal.SIGINT)
        assert child.wait() == 0


@pytest.mark.slow
def test_a_persistent_server_keeps_its_data() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kept-"))
    folder.chmod(0o755)  # the server runs as another user than root
    try:
        for statement in ("CREATE TABLE kept ()", "DROP TABLE kept"):
            server = postgres.Postgres(folder / "postgres").start()
            server.execute(statement)
            server.stop()
    finally:
        shutil.rmtree(folder)


def test_make_run_finds_a_taken_port_before_it_installs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for given, says in ((port, f"port {port} is taken"), ("abc", "PORT=abc is no port")):
            command = ["make", "run", f"PORT={given}", f"VENV={tmp_path / 'venv'}"]
            made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert made.returncode != 0
            assert made.stderr.startswith(says)
    assert [*tmp_path.iterdir()] == []


def test_a_second_service_on_the_same_data_is_refused(tmp_path: Path) -> None:
    env = {**os.environ, "PORT": str(free_port()), "DATA": str(tmp_path)}
    with run.alone(tmp_path):
        command = [sys.executable, "-m", "devtools.run"]
        second = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=30
        )
    assert second.returncode == 1
    assert second.stderr.startswith(f"the service is running already, with its data in {tmp_path}")


@pytest.mark.parametrize("port", quick_first(["abc", "0", "65536"]))
def test_a_port_that_is_none_is_told(port: str) -> None:
    command = [sys.executable, "-m", "devtools.run"]
    env = {**os.environ, "PORT": port}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(f"argument --port: invalid port value: '{port}'\n")


PROGRAMS = [
    path.stem for path in (ROOT / "devtools").glob("*.py") if "__main__" in path.read_text()
]


@pytest.mark.parametrize("program", quick_first(PROGRAMS))
def test_every_program_has_help(program: str) -> None:
    command = [sys.executable, "-m", f"devtools.{program}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith(f"usage: python -m devtools.{program} [-h]")
