"""What goes wrong on the way to a running service is told in one sentence that says what to do, without a traceback."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from devtools import processes
from devtools.postgres import Postgres
from devtools.processes import ROOT, Process, events, free_port, wait_until
from devtools.valkey import Valkey
from orders.queues import queue_names
from tests.kit.databases import empty_database
from tests.kit.length import quick_first

SET_DATABASE = "set it to postgresql+psycopg://user:password@host/name"
MIGRATE = "run python -m orders migrate"
NO_DATABASE = "postgresql+psycopg://nobody@127.0.0.1:1/none"
NOBODY = "redis://127.0.0.1:1/0"
MALFORMED = "postgresql+psycopg://shop:s3cret@host:port/shop"
SEVERAL = "redis://:s3cret@one:6379/0 redis://:s3cret@two:6379/0"
KEYS = "flask --app orders.app keys list"
GRANIAN = "granian --interface wsgi --factory --port 0 orders.app:create_app"
RUN = "worker run"
#: Flows as people write them, with one mistake each.
MODULES = {
    "imports.py": "from worker import Flow\n\nimport no_such_package\n",
    "wants.py": "def flows(settings): ...\n",
    "mails.py": "def reminders(): ...\n\ndef broken(): raise KeyError('MAIL_HOST')\n",
    "nothing.py": "flows = 3\n\ndef none(): return []\n",
    "worker.py": "raise SystemExit('shadowed')\n",
    "orders.py": "raise SystemExit('shadowed')\n",
}


class Row(NamedTuple):
    """A command, and the sentence that it answers with."""

    command: str
    sentence: str
    #: On top of an unmigrated database and a port without Redis; None takes one away.
    env: dict[str, str | None] = {}  # noqa: RUF012  never changed
    status: int = 1


ROWS = [
    # DATABASE_URL
    Row(KEYS, f"DATABASE_URL is not set: {SET_DATABASE}", {"DATABASE_URL": None}),
    Row(KEYS, f"DATABASE_URL is malformed: {SET_DATABASE}", {"DATABASE_URL": MALFORMED}),
    Row(KEYS, "set PGSERVICE", {"DATABASE_URL": "postgresql+psycopg://?service=shop"}),
    Row(
        KEYS,
        "DATABASE_URL names an unsupported database or driver",
        {"DATABASE_URL": "postgresql+asyncpg://h/d"},
    ),
    Row(
        KEYS,
        "The database does not answer. connection failed: ",
        {"DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:1/shop"},
    ),
    Row(KEYS, f"""It answers 'relation "api_keys" does not exist': {MIGRATE}"""),
    Row("alembic upgrade head", f"DATABASE_URL is not set: {SET_DATABASE}", {"DATABASE_URL": None}),
    Row("alembic upgrade head", "DATABASE_URL is malformed", {"DATABASE_URL": MALFORMED}),
    Row(
        "alembic upgrade head",
        "The database does not answer. connection failed: ",
        {"DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:1/shop"},
    ),
    Row("orders migrate", f"DATABASE_URL is not set: {SET_DATABASE}", {"DATABASE_URL": None}),
    Row("orders migrate", "DATABASE_URL is malformed", {"DATABASE_URL": MALFORMED}),
    Row(
        "orders migrate",
        "cannot execute CREATE TABLE in a read-only transaction",
        {"PGOPTIONS": "-c default_transaction_read_only=on"},
    ),
    Row(
        f"{RUN} orders.timeouts:flows",
        f"DATABASE_URL is not set: {SET_DATABASE}",
        {"DATABASE_URL": None},
    ),
    Row(f"{RUN} orders.timeouts:flows", "DATABASE_URL is malformed", {"DATABASE_URL": MALFORMED}),
    Row(GRANIAN, f"DATABASE_URL is not set: {SET_DATABASE}", {"DATABASE_URL": None}),
    Row(GRANIAN, "DATABASE_URL is malformed", {"DATABASE_URL": MALFORMED}),
    # REDIS_URL
    Row(GRANIAN, "this is not a Redis URL: write redis://", {"REDIS_URL": "localhost:6379"}),
    Row(KEYS, "REDIS_URL is not set: set it to redis://", {"REDIS_URL": None}),
    Row(KEYS, "this is not a Redis URL: write redis://", {"REDIS_URL": "localhost:6379"}),
    Row(
        "worker stats --flows mails:queue",
        "this is not a Redis URL: write redis://",
        {"REDIS_URL": "redis://:s3cret@host:port/0"},
    ),
    Row(KEYS, "REDIS_URL: these are several URLs: write one", {"REDIS_URL": SEVERAL}),
    Row(f"{RUN} mails:queue", "these are several URLs: write one", {"REDIS_URL": SEVERAL}),
    *(
        Row(
            KEYS,
            "this is not a Redis URL: write redis://",
            {"REDIS_URL": f"redis+sentinel://{rest}"},
        )
        for rest in (":s3cret/x@host:26379/orders", ":123/x/s3cret@host/orders")
    ),
    Row("worker stats --flows mails:queue", "REDIS_URL is not set: set it", {"REDIS_URL": None}),
    Row(
        "worker stats --flows mails:queue",
        "Connection refused.: check the host and the port in REDIS_URL, and that Redis runs there",
    ),
    # Flows
    Row(
        f"{RUN} imports",
        "imports.py, line 3: ModuleNotFoundError: No module named 'no_such_package'",
    ),
    Row(f"{RUN} wants", "wants:flows cannot be called without arguments"),
    Row(f"{RUN} mails:broken", "mails.py, line 3: KeyError: 'MAIL_HOST'"),
    Row(f"{RUN} mails:reminder", "has no function reminder."),
    Row(f"{RUN} mail:reminders", "No module named 'mail'."),
    Row(f"{RUN} orders.timeout", "No module named 'orders.timeout'."),
    Row(f"{RUN} mails.reminders", "'mails' is not a package."),
    Row(f"{RUN} ./mails.py:reminders", "is a file: name its module, as mails:reminders"),
    Row(f"{RUN} :reminders", "names no module"),
    Row(
        f"{RUN} nothing",
        "nothing:flows cannot be called without arguments (3 is not a callable object)",
    ),
    Row(f"{RUN} nothing:none", "nothing:none() returned no flows: it should return a list of Flow"),
    Row(f"{RUN} worker:flows", "worker is the engine's own name: give your module another"),
    Row(RUN, "Name them as MODULE:FUNCTION"),
    # Pasted from the documentation
    Row(
        "flask --app orders.app keys rotate ID",
        "'ID' is not a key's id: keys list shows them",
        status=2,
    ),
    # <providers>
    Row(
        "flask --app orders.app providers rotate ID",
        "'ID' is not an id: lists and searches show them",
        status=2,
    ),
    # </providers>
    # Examples
    Row("examples plain_que", "there is no example plain_que: did you mean plain_queue?", status=2),
    Row("examples", "python -m examples NAME --help describes one", status=2),
    Row("examples.demo --base-url http://127.0.0.1:1 --api-key", "expected one argument", status=2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("folder")
    (made / "alembic.ini").write_text(
        (ROOT / "alembic.ini").read_text().replace("%(here)s", str(ROOT))
    )
    flow = "from worker import Flow\n\ndef queue(): return [Flow(name='mails', handler=print)]\n"
    for name, text in MODULES.items():
        (made / name).write_text(f"{text}\n{flow}" if name == "mails.py" else text)
    return made


#: ``python -m`` of a module, as the installed command runs it: what is here does not hide it.
SAFELY = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"
)


def told(
    row: Row, folder: Path, database_url: str = NO_DATABASE
) -> subprocess.CompletedProcess[str]:
    given = {"DATABASE_URL": database_url, "REDIS_URL": NOBODY, "PYTHONPATH": str(ROOT), **row.env}
    env = {**os.environ, **{name: value for name, value in given.items() if value is not None}}
    for name in given.keys() - {name for name, value in given.items() if value is not None}:
        env.pop(name, None)
    return subprocess.run(
        [sys.executable, "-P", "-c", SAFELY, *shlex.split(row.command)],
        cwd=folder / "elsewhere" if row.command.startswith(("flask", "granian")) else folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def unmigrated_url(postgres: Postgres) -> Iterator[str]:
    with empty_database(postgres) as url:
        yield url


@pytest.mark.parametrize(
    "row", quick_first(ROWS), ids=lambda row: f"{row.command}: {row.sentence[:40]}"
)
def test_what_is_wrong_is_one_sentence(row: Row, folder: Path, unmigrated_url: str) -> None:
    (folder / "elsewhere").mkdir(exist_ok=True)  # flask and granian import from their folder first
    done = told(row, folder, unmigrated_url)
    assert row.sentence in done.stderr
    assert done.returncode == row.status
    assert "Traceback" not in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    if row.status == 1:
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_example_and_their_list_say_what_they_do(folder: Path) -> None:
    one = told(Row("examples nightly_report --help", "", {}, 0), folder)
    assert (one.returncode, one.stderr) == (0, "")
    assert one.stdout.startswith("A report at two o'clock each night")
    every = told(Row("examples --help", "", {}, 0), folder)
    assert every.returncode == 0
    assert "\n  nightly_report        A report at two o'clock" in every.stdout


@pytest.mark.slow
def test_a_key_pasted_with_a_line_break_is_sent_without_it(folder: Path) -> None:
    demo = "examples.demo --base-url http://127.0.0.1:1 --api-key 'ab\ncd\n'"
    done = told(Row(demo, "", {}, 0), folder)
    assert (done.returncode, "Connection refused" in done.stdout) == (1, True)
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("redis_client")  # empties it
@pytest.mark.parametrize("command", quick_first(["requeue", "purge", "show"]))
def test_a_dead_letter_that_is_none_is_named(command: str, folder: Path, valkey: Valkey) -> None:
    row = Row(f"worker dead {command} ID --flows mails:queue", "", {"REDIS_URL": valkey.url})
    done = told(row, folder)
    assert done.returncode == 1
    assert done.stderr == "worker: no dead letter ID: dead list shows the ids\n"


# -- a worker that waits -------------------------------------------------------------------


@pytest.fixture
def limited(valkey: Valkey, redis_client: redis.Redis) -> Iterator[str]:
    """The URL of a user who may use the queues' keys, and no channel."""
    redis_client.acl_setuser(
        "limited",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        categories=["+@all"],
        reset_channels=True,
    )
    yield valkey.url.replace("redis://", "redis://limited:secret@")
    redis_client.acl_deluser("limited")


def lines_of(folder: Path, url: str, *texts: str) -> list[dict[str, object]]:
    """What a worker on this Redis has logged once it has logged all of these."""
    env = {"REDIS_URL": url}
    worker = processes.python(["worker", "run", "tests.kit.flows:recording"], env, folder / "log")
    return logged(worker, *texts)


def logged(worker: Process, *texts: str) -> list[dict[str, object]]:
    try:
        wait_until(
            lambda: {*texts} <= {line["event"] for line in events(worker.log)}, " and ".join(texts)
        )
    finally:
        assert worker.stop() == 0
    return [line for line in events(worker.log) if line["event"] in texts]


def test_a_worker_that_waits_for_redis_says_what_to_check(tmp_path: Path) -> None:
    found = lines_of(tmp_path, f"redis://127.0.0.1:{free_port()}/0", "Redis does not serve claims")
    advice = "check the host and the port in REDIS_URL, and that Redis runs there"
    assert {line["advice"] for line in found} == {advice}


def test_a_worker_with_a_wrong_password_says_so(tmp_path: Path, valkey: Valkey) -> None:
    wrong = valkey.url.replace("redis://", "redis://:wrong@")
    found = lines_of(tmp_path, wrong, "Redis does not serve claims")
    assert {line["advice"] for line in found} == {"check the user and the password in REDIS_URL"}
    assert "wrong@" not in (tmp_path / "log").read_text()


def test_a_worker_whose_acl_lacks_the_channel_says_so(tmp_path: Path, limited: str) -> None:
    [found] = lines_of(tmp_path, limited, "wake channel lost")
    assert "give this user the channels of its queues in its ACL" in str(found["advice"])


@pytest.mark.usefixtures("redis_client")  # empties it
def test_a_worker_without_the_schema_says_so_once_for_a_flow(
    tmp_path: Path, valkey: Valkey, database_url: str
) -> None:
    env = {"DATABASE_URL": database_url, "REDIS_URL": valkey.url}
    worker = processes.worker(env, tmp_path / "log")

    def unavailable() -> list[dict[str, object]]:
        return [line for line in events(worker.log) if line["event"] == "unavailable"]

    try:
        wait_until(lambda: len(unavailable()) >= len(queue_names()), "all flows to say so")
    finally:
        assert worker.stop() == 0
    assert all(MIGRATE in str(line["error"]) for line in unavailable())
    assert sorted(str(line["queue"]) for line in unavailable()) == sorted(queue_names())
    assert "Traceback" not in (tmp_path / "log").read_text()
