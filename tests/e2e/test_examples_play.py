"""Every example in examples/, as its first lines say to try it, and its promises with the clock moved."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
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
    batches,
    fastapi_app,
    future_mail,
    hold_with_mails,
    nightly_report,
    out_of_order,
    payment_notification,
    reminder,
)
from examples.__main__ import names
from examples.stage import working
from tests.integration.test_records import code_lines
from tests.length import quick_first
from worker import DelayQueue

#: How the lines begin that each prints, in this order. The seconds depend on the machine.
PRINTED: dict[str, list[str | re.Pattern[str]]] = {
    "batches": ["100 in one call, 2 to be", "100 in one call, 1 to be", "5"],
    "future_mail": ["Message-ID: <soon@example.org>"],
    "hold_with_mails": [
        "Message-ID: <A1-reminder-1@example.org>",
        "Message-ID: <A1-expired-1@example.org>",
    ],
    "lock_conflict": ["first finds the account locked", "second done", "first done"],
    "nightly_report": ["next: ", "next: ", "next: ", "report for ", "report for "],
    "out_of_order": [
        "a TTL queue [0.5, 0.5, 0.5, 0.5, 0.5]",
        "this queue  [0.1, 0.2, 0.3, 0.4, 0.5]",
    ],
    "payment_notification": [
        "0.00 s: https://shop",
        *[re.compile(r"\d+\.\d\d s: https://shop")] * 3,
    ],
    "plain_queue": ["took apple", "took banana", "took cherry", "took pear"],
    "priorities": [f"handled {name} {n}" for name in ("high", "medium", "low") for n in (1, 2)],
    "redisson": ["cancelled: True", "b'msg1' b'msg2'"],
    "seat_reservation": [
        "A1/hold 200 OK",
        "A2/hold 200 OK",
        "A1/hold 409 CONFLICT",
        "A2/pay 200 OK",
        "{'A1': 'free', 'A2': 'sold'}",
    ],
    "reminder": ["to bob@example.org: order 7", "to ada@example.org: appointment check-up"],
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


def test_batches_do_every_task_and_repeat_refused_ones(
    valkey: Valkey, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    batches.play(valkey.url)
    counts = re.findall(r"^(\d+) in one call, (\d+) to be", capsys.readouterr().out, re.MULTILINE)
    # How many calls it takes depends on how fast they are: a refused task is due again in 100 ms.
    assert sum(int(tasks) for tasks, _ in counts) == 253
    assert sum(int(refused) for _, refused in counts) == 3
    assert DelayQueue(redis_client, "messages").stats().scheduled == 0


@pytest.mark.parametrize("name", [*PRINTED, "fastapi_app"])
def test_an_example_is_short(name: str) -> None:
    most = 70 if name == "hold_with_mails" else 60  # a whole product
    assert code_lines(ROOT / "examples" / f"{name}.py") <= most


def test_most_examples_take_thirty_lines() -> None:
    lines = [code_lines(ROOT / "examples" / f"{name}.py") for name in [*PRINTED, "fastapi_app"]]
    assert sum(count <= 30 for count in lines) > len(lines) / 2


@pytest.mark.slow
def test_an_example_starts_its_server_and_unknown_ones_fail() -> None:
    command = [sys.executable, "-m", "examples"]
    done = subprocess.run(
        [*command, "redisson"], cwd=ROOT, env={}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*command, "nothing"], cwd=ROOT, env={}, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"redisson, reminder" in done.stderr


def test_a_reminder_moves_with_its_appointment(
    redis_client: redis.Redis,
) -> None:
    queue = DelayQueue(redis_client, "reminders")
    at = datetime(2030, 5, 17, 9, 30, tzinfo=UTC)
    reminder.appointment_made(queue, "check-up", at, "ada@example.org")
    reminder.appointment_made(queue, "check-up", at + timedelta(days=1), "ada@example.org")
    reminder.appointment_made(queue, "dentist", at, "ada@example.org")
    reminder.appointment_cancelled(queue, "dentist")
    due_ms = round(at.timestamp() * 1000)  # a day before the later time
    assert queue.claim(9, 1000, now_ms=due_ms - 1).tasks == []
    [task] = queue.claim(9, 1000, now_ms=due_ms).tasks
    assert (task.id, task.payload) == ("appointment check-up", b"ada@example.org")


def test_an_order_is_reminded_of_ten_minutes_before_it_expires(redis_client: redis.Redis) -> None:
    queue = DelayQueue(redis_client, "reminders")
    expires_at = datetime(2030, 5, 17, 10, 0, tzinfo=UTC)
    reminder.order_placed(queue, "7", expires_at, "bob@example.org")
    due_ms = round(expires_at.timestamp() * 1000) - 600_000
    assert queue.claim(9, 1000, now_ms=due_ms - 1).tasks == []
    assert [task.id for task in queue.claim(9, 1000, now_ms=due_ms).tasks] == [
        "order 7 expires soon"
    ]


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


def test_a_ttl_queue_holds_tasks_behind_a_longer_delay() -> None:
    assert out_of_order.fired_by_a_ttl_queue([1, 2, 3]) == [1, 2, 3]
    assert out_of_order.fired_by_a_ttl_queue([10, 1]) == [10, 10]


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
def letters(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/letters.db")
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
                    letter = {"id": f"{n}", "recipient": "me@example.org", "text": "Dear me"}
                    future_mail.write(connection, post, letter, days=0)
            wait_until(lambda: _unsent(letters) == 0, "all letters to be sent")
    assert sorted(mailbox.ids) == [f"Message-ID: <{n}@example.org>" for n in range(5)]


@pytest.mark.usefixtures("redis_client")
def test_a_letter_waits_in_sql_for_years(valkey: Valkey, letters: sa.Engine) -> None:
    post = future_mail.post_office(letters, valkey.url)
    with letters.begin() as connection:
        letter = {"id": "1", "recipient": "me@example.org", "text": "Dear me"}
        future_mail.write(connection, post, letter, days=3650)
        connection.exec_driver_sql("UPDATE letters SET send_at = datetime(send_at, '-3649 days')")
    sweep = future_mail.flow(post).sweep
    assert sweep is not None
    [[due]] = [page for page in sweep(None, 2 * 86_400) if page]
    assert due.id == "1"
    assert 0.99 * DAY_MS < due.delay_ms <= DAY_MS


def _unsent(engine: sa.Engine) -> int:
    unsent = future_mail.letters.c.is_sent.is_(False)
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).where(unsent)) or 0


@pytest.mark.usefixtures("redis_client")
def test_a_reminder_moves_with_the_end_of_its_hold(letters: sa.Engine, valkey: Valkey) -> None:
    seats = hold_with_mails.Seats(letters, valkey.url)
    with letters.begin() as connection:
        seats.hold(connection, "A1", "ada@example.org", seconds=600)
        seats.hold(connection, "A2", "ada@example.org", seconds=600)
        seats.extend(connection, "A1", seconds=900)
        seats.change(connection, "A2", status="paid")
        with pytest.raises(sa.exc.NoResultFound):
            seats.extend(connection, "A2", seconds=900)
    waiting = {
        due.id: due.delay_ms
        for flow in (seats.holds.flow(), future_mail.flow(seats.letters))
        if flow.sweep
        for page in flow.sweep(None, 1e6)
        for due in page
    }
    assert {*waiting} == {"A1", "A1-reminder-1"}
    assert waiting["A1"] == pytest.approx(1_500_000, abs=60_000)
    assert waiting["A1"] - waiting["A1-reminder-1"] == pytest.approx(300_000, abs=60_000)


def test_a_hold_ends_with_one_mail_when_redis_is_gone(
    mailbox: Mailbox, letters: sa.Engine, tmp_path: Path
) -> None:
    with private_valkey(tmp_path / "redis") as server:
        seats = hold_with_mails.Seats(letters, server.url)
        flows = seats.holds.flow(), future_mail.flow(seats.letters)
        with working(server.url, *flows), working(server.url, *flows):
            server.kill()
            with letters.begin() as connection:
                for seat in "abc":
                    seats.hold(connection, seat, "ada@example.org", seconds=0)
            expired = [f"Message-ID: <{seat}-expired-0@example.org>" for seat in "abc"]
            wait_until(lambda: {*mailbox.ids} >= {*expired} and not _unsent(letters), "all mails")
    assert sorted(set(mailbox.ids)) == sorted(mailbox.ids)  # the reminders may come before


@pytest.mark.usefixtures("redis_client")
def test_a_seat_is_held_again_after_its_hold_has_ended(letters: sa.Engine, valkey: Valkey) -> None:
    seats = hold_with_mails.Seats(letters, valkey.url)
    with letters.begin() as connection:
        seats.hold(connection, "A1", "ada@example.org", seconds=600)
        with pytest.raises(sa.exc.IntegrityError), connection.begin_nested():
            seats.hold(connection, "A1", "eve@example.org", seconds=600)
        seats.end(connection, ["A1"])
        seats.hold(connection, "A1", "eve@example.org", seconds=600)
        ids = connection.scalars(sa.select(future_mail.letters.c.id)).all()
    assert sorted(ids) == ["A1-expired-0", "A1-reminder-1"]


@pytest.mark.usefixtures("redis_client")
def test_an_extension_does_not_wait_for_the_mail_server(database_url: str, valkey: Valkey) -> None:
    engine = sa.create_engine(database_url, connect_args={"options": "-c lock_timeout=50"})
    future_mail.letters.metadata.create_all(engine)
    seats = hold_with_mails.Seats(engine, valkey.url)
    with engine.begin() as connection:
        seats.hold(connection, "A1", "ada@example.org", seconds=600)
    with engine.begin() as sending, engine.begin() as extending:
        sending.execute(future_mail.letters.select().with_for_update())
        seats.extend(extending, "A1", seconds=900)
    engine.dispose()


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
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"\| `test_\w+`", row)] == []
    named = re.findall(r"`(test_\w+)`", page)
    assert [name for name in named if f"def {name}(" not in tests] == []
