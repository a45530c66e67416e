"""Every example in examples/, as its first lines say to try it, and its promises with the clock moved."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import sqlalchemy as sa
from aiosmtpd.controller import Controller

from devtools import processes
from devtools.processes import ROOT, free_port, wait_until
from devtools.valkey import Valkey, private_valkey
from examples import (
    fastapi_app,
    future_mail,
    nightly_report,
    payment_notification,
)
from examples.__main__ import names
from examples.stage import working
from tests.kit.length import quick_first
from worker import DelayQueue

#: How the lines begin that each prints, in this order. The seconds depend on the machine.
PRINTED: dict[str, list[str | re.Pattern[str]]] = {
    "future_mail": ["Message-ID: <soon@example.org>"],
    "lock_conflict": ["first finds the account locked", "second done", "first done"],
    "nightly_report": ["next: ", "next: ", "next: ", "report for ", "report for "],
    "payment_notification": [
        "0.00 s: https://shop",
        *[re.compile(r"\d+\.\d\d s: https://shop")] * 3,
    ],
    "plain_queue": ["took apple", "took banana", "took cherry", "took pear"],
    "seat_reservation": [
        "A1/hold 200 OK",
        "A2/hold 200 OK",
        "A1/hold 409 CONFLICT",
        "A2/pay 200 OK",
        "{'A1': 'free', 'A2': 'sold'}",
    ],
}
DAY_MS = 86_400_000


def test_the_list_of_examples_is_complete() -> None:
    assert names() == sorted(PRINTED)


@pytest.mark.parametrize("name", quick_first(PRINTED))
def test_an_example_plays_as_its_first_lines_say(name: str, valkey: Valkey) -> None:
    source = ROOT / "examples" / f"{name}.py"
    assert f"\npython -m examples {name}\n" in source.read_text()
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    done = subprocess.run(
        [sys.executable, "-m", "examples", name],
        cwd=ROOT,
        env={"REDIS_URL": valkey.url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = iter(done.stdout.splitlines())
    for expected in PRINTED[name]:
        begins = re.compile(re.escape(expected)) if isinstance(expected, str) else expected
        assert any(begins.match(line) for line in lines), (expected, done.stdout)


@pytest.mark.slow
def test_an_example_starts_its_server_and_unknown_ones_fail() -> None:
    command = [sys.executable, "-m", "examples"]
    done = subprocess.run(
        [*command, "plain_queue"], cwd=ROOT, env={}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*command, "nothing"], cwd=ROOT, env={}, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"plain_queue, seat_reservation" in done.stderr


def test_a_shop_is_notified_fifteen_times_and_given_up() -> None:
    flow = payment_notification.flow(lambda *_: None)
    waits = [flow.backoff(failures) for failures in range(1, flow.max_failures)]
    assert waits[:5] == [15, 15, 30, 180, 600]
    assert len(waits) == 15
    assert 22 * 3600 < sum(waits) < 26 * 3600


def test_a_report_is_due_at_two_on_the_nights_when_clocks_change() -> None:
    [report] = nightly_report.flows()
    march = round(datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp() * 1000)
    october = round(datetime(2027, 10, 30, 12, tzinfo=UTC).timestamp() * 1000)
    assert report.schedule.after(march).id == "2027-03-28T03:00:00+02:00"  # there is no 02:00
    autumn = report.schedule.after(october)
    assert autumn.id == "2027-10-31T02:00:00+02:00"  # the first of two
    assert report.schedule.after(autumn.due_at_ms).id == "2027-11-01T02:00:00+01:00"


class Mailbox:
    """What a mail server was sent."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        text = envelope.content.decode()
        self.ids += [line for line in text.splitlines() if line.startswith("Message-ID")]
        return "250 OK"


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Any:
    box = Mailbox()
    server = Controller(box, hostname="127.0.0.1", port=free_port())
    server.start()
    monkeypatch.setenv("SMTP_PORT", str(server.port))
    yield box
    server.stop()


@pytest.fixture
def letters(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    future_mail.letters.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.slow
def test_a_letter_is_sent_once_by_two_workers_when_redis_is_gone(
    mailbox: Mailbox, letters: sa.Engine, tmp_path: Path
) -> None:
    with private_valkey(tmp_path / "redis") as server:
        post = future_mail.post_office(letters, server.url)
        flow = future_mail.flow(post)
        with working(server.url, flow), working(server.url, flow):
            server.kill()
            with letters.begin() as connection:
                for n in range(5):
                    letter = {
                        "id": f"row:{n} of 5",
                        "recipient": "me@example.org",
                        "text": "Dear me",
                    }
                    future_mail.write(connection, post, letter, days=0)
            wait_until(lambda: _unsent(letters) == 0, "all letters to be sent")
    assert sorted(mailbox.ids) == [
        f"Message-ID: <row%3A{n}%20of%205@example.org>" for n in range(5)
    ]


@pytest.mark.usefixtures("redis_client")
def test_a_letter_waits_in_sql_for_years(valkey: Valkey, letters: sa.Engine) -> None:
    post = future_mail.post_office(letters, valkey.url)
    with letters.begin() as connection:
        letter = {"id": "1", "recipient": "me@example.org", "text": "Dear me"}
        future_mail.write(connection, post, letter, days=3650)
        connection.exec_driver_sql("UPDATE letters SET send_at = send_at - interval '3649 days'")
    sweep = future_mail.flow(post).sweep
    assert sweep is not None
    [[due]] = [page for page in sweep(None, 2 * 86_400) if page]
    assert due.id == "1"
    assert 0.99 * DAY_MS < due.delay_ms <= DAY_MS


def _unsent(engine: sa.Engine) -> int:
    unsent = future_mail.letters.c.is_sent.is_(False)
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).where(unsent)) or 0


def test_a_fastapi_application_schedules_moves_and_cancels(
    redis_client: redis.Redis, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", valkey.url)
    queue = DelayQueue(redis_client, "reminders")
    app = fastapi_app.app

    async def session() -> list[str]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as http,
        ):
            answers = [
                await http.put("/reminders/a?seconds=60"),
                await http.put("/reminders/a?seconds=90"),
                await http.put("/reminders/b?seconds=60"),
                await http.delete("/reminders/a"),
                await http.delete("/reminders/a"),
            ]
        return [answer.json()["result"] for answer in answers]

    results = asyncio.run(session())
    assert results == ["created", "rescheduled", "created", "removed", "missing"]
    assert queue.stats().scheduled == 1


@pytest.mark.slow
def test_the_fastapi_application_runs_as_its_docstring_says(
    redis_client: redis.Redis, valkey: Valkey, tmp_path: Path
) -> None:
    serve, put = re.findall(r"^(?:granian|curl) [^#\n]*", fastapi_app.__doc__ or "", re.MULTILINE)
    port = free_port()
    log = tmp_path / "api.log"
    server = processes.python([*serve.split(), "--port", str(port)], {"REDIS_URL": valkey.url}, log)
    try:
        [url] = re.findall("'(localhost:8000/.*)'", put)
        url = f"http://{url.replace('localhost:8000', f'127.0.0.1:{port}')}"
        wait_until(lambda: httpx.put(url).is_success, "an answer", ignoring=httpx.TransportError)
    finally:
        server.stop()
    assert DelayQueue(redis_client, "reminders").stats().scheduled == 1


def test_the_guide_lists_every_example() -> None:
    guide = (ROOT / "docs" / "writing-a-flow.md").read_text()
    listed = re.findall(r"\[(\w+)\]\(../examples/(\w+)\.py\)", guide)
    assert sorted(listed) == sorted((name, name) for name in [*PRINTED, "fastapi_app"])


def test_the_page_about_the_articles_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "seeds.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    rows = re.findall(r"^\| .*", page.partition("## Where")[0], re.MULTILINE)[1:]
    assert rows
    assert [row for row in rows if not re.search(r"\| `test_\w+`", row)] == []
    named = re.findall(r"`(test_\w+)`", page)
    assert [name for name in named if f"def {name}(" not in tests] == []
