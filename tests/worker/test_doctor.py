"""What `doctor` says of Redis, queues and flows, each with the fault made real."""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.processes import wait_until
from devtools.valkey import Valkey, private_valkey, redis_62_server
from tests.kit.settling import dead_letter
from tests.kit.workers import running
from worker import (
    DelayQueue,
    Delays,
    Due,
    Finding,
    Flow,
    Level,
    Retry,
    Task,
    Unavailable,
    Worker,
    connect,
)
from worker.cli import main
from worker.doctor import examine
from worker.doctor.flows import flow_findings

FLOWS = f"{__name__}:flows"
Doctor = Callable[..., dict[str, Finding]]


def flows() -> list[Flow]:
    return [Flow(name="examined", handler=lambda _: None)]


def found(client: redis.Redis, *flows_: Flow, **settings: Any) -> dict[str, Finding]:
    """What is not well, by its check."""
    findings = examine(client, flows_, **settings)
    return {finding.check: finding for finding in findings if finding.level is not Level.OK}


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    return DelayQueue(redis_client, "examined")


@pytest.fixture
def flow(queue: DelayQueue) -> Flow:
    """One with a live worker."""
    [made] = flows()
    queue.beat("host:1:abcdef", {"up": True, "holds": 0, "held": [], "oldest_seconds": 0.0})
    return made


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Callable[..., redis.Redis]]:
    """Starts a server with options, which a test may break."""
    started: list[Any] = []

    def start(*options: str, program: str | None = None) -> redis.Redis:
        context = private_valkey(tmp_path / f"valkey{len(started)}", *options, program=program)
        server = context.__enter__()
        client = connect(server.url, timeout_seconds=10)
        started.extend([context, client])
        return client

    yield start
    for context, client in zip(started[::2], started[1::2], strict=True):
        client.close()
        context.__exit__(None, None, None)


def test_all_is_well(redis_client: redis.Redis, flow: Flow) -> None:
    findings = [*examine(redis_client, [flow])]
    assert {finding.level for finding in findings} == {Level.OK}
    assert {finding.advice for finding in findings} == {""}
    assert [finding.check for finding in findings] == [
        "redis.version",
        "redis.role",
        "redis.eviction",
        "redis.memory",
        "redis.persistence",
        "redis.rights",
        "redis.clock",
        "flow.settings",
        "queue.pause",
        "queue.workers",
        "queue.backlog",
        "queue.dead",
    ]


def test_an_examination_changes_nothing(
    redis_client: redis.Redis, queue: DelayQueue, flow: Flow
) -> None:
    queue.schedule_many([("due", 1, b"x"), ("later", 2**52, b"")])
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    records = [Due("due", -10_000), Due("lost", 5000)]
    sweeping = Flow(name="examined", handler=flow.handler, sweep=listing(records))
    assert "flow.tasks" in found(redis_client, sweeping)
    assert {key: redis_client.dump(key) for key in redis_client.scan_iter()} == before


# -- Redis ---------------------------------------------------------------------------------


def test_redis_that_does_not_answer() -> None:
    probed: list[str] = []
    flow = Flow(name="examined", handler=lambda _: None, probe=lambda: probed.append("asked"))
    [finding] = found(connect("redis://127.0.0.1:1"), flow).values()
    assert (finding.check, finding.level) == ("redis.answers", Level.FAILURE)
    assert probed == ["asked"], "the rest is examined all the same"


def test_a_wrong_eviction_policy(private: Callable[..., redis.Redis]) -> None:
    client = private("--maxmemory-policy", "allkeys-lru", "--appendonly", "yes")
    finding = found(client)["redis.eviction"]
    assert finding.level is Level.FAILURE
    assert "allkeys-lru" in finding.summary
    assert "noeviction" in finding.advice


def test_a_memory_that_is_nearly_full_and_full(private: Callable[..., redis.Redis]) -> None:
    client = private("--appendonly", "yes")
    info: Any = client.info("memory")
    client.config_set("maxmemory", int(info["used_memory"] * 1.05))
    assert found(client)["redis.memory"].level is Level.WARNING
    client.config_set("maxmemory", 1_000_000)
    finding = found(client)["redis.memory"]
    assert finding.level is Level.FAILURE
    assert "full" in finding.summary


def test_a_server_without_an_append_only_file(private: Callable[..., redis.Redis]) -> None:
    finding = found(private())["redis.persistence"]
    assert finding.level is Level.WARNING
    assert "appendonly yes" in finding.advice


def test_a_replica(private: Callable[..., redis.Redis]) -> None:
    primary = private("--appendonly", "yes")
    port = primary.connection_pool.connection_kwargs["port"]
    replica = private("--appendonly", "yes", "--replicaof", "127.0.0.1", str(port))
    queue = DelayQueue(primary, "examined")
    queue.schedule("a", 2**52)

    def is_synchronized() -> bool:
        info: Any = replica.info("replication")
        return bool(info["master_link_status"] == "up")

    wait_until(is_synchronized, "the replica to have it all")
    findings = found(replica, queues=["examined"])
    assert findings["redis.role"].level is Level.FAILURE
    assert "read only replica" in findings["redis.writes"].summary


def test_a_user_without_rights_on_keys_channels_and_info(
    private: Callable[..., redis.Redis],
) -> None:
    admin = private("--appendonly", "yes")
    admin.acl_setuser("elsewhere", enabled=True, nopass=True, keys=["other"], categories=["+@all"])
    admin.acl_setuser(
        "quiet", enabled=True, nopass=True, keys=["{examined}:*"], categories=["+@all"],
        commands=["-info"], reset=True, channels=[],
    )  # fmt: skip
    port = admin.connection_pool.connection_kwargs["port"]
    elsewhere = connect(f"redis://elsewhere:x@127.0.0.1:{port}")
    findings = found(elsewhere, *flows())
    assert findings["redis.rights"].level is Level.FAILURE
    assert "~{examined}:*" in findings["redis.rights"].advice
    quiet = connect(f"redis://quiet:x@127.0.0.1:{port}")
    findings = found(quiet, *flows())
    assert findings["redis.rights"].level is Level.WARNING
    assert "&{examined}:*" in findings["redis.rights"].advice
    assert "INFO was refused" in findings["redis.info"].summary
    assert findings["queue.workers"].level is Level.FAILURE, "the rest is examined all the same"


def test_a_wrong_password(private: Callable[..., redis.Redis]) -> None:
    admin = private("--appendonly", "yes")
    admin.acl_setuser("shop", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
    port = admin.connection_pool.connection_kwargs["port"]
    with connect(f"redis://shop:wrong@127.0.0.1:{port}") as client:
        finding = found(client)["redis.answers"]
    assert "AuthenticationError: invalid username-password pair" in finding.summary
    assert "wrong@" not in finding.summary


@pytest.mark.parametrize(("offset", "text"), [(60, "s behind"), (-60, "s ahead of")])
def test_a_clock_that_is_off_by_a_minute(
    redis_client: redis.Redis, flow: Flow, offset: int, text: str
) -> None:
    finding = found(redis_client, flow, clock=lambda: time.time() + offset)["redis.clock"]
    assert finding.level is Level.WARNING
    [seconds] = re.findall(rf"(\d+\.\d) {text} ", finding.summary)
    assert float(seconds) == pytest.approx(60, abs=10)  # a busy machine is slow to compare


@pytest.mark.skipif(redis_62_server() is None, reason="no wheel for this platform")
def test_the_oldest_server_is_well_too(private: Callable[..., redis.Redis]) -> None:
    client = private("--appendonly", "yes", program=redis_62_server())
    findings = {finding.check: finding for finding in examine(client, queues=["examined"])}
    assert findings["redis.version"].summary.startswith("Redis 6.2")
    assert [*found(client, queues=["examined"])] == ["queue.workers"]


# -- queues --------------------------------------------------------------------------------


def test_no_worker_runs(redis_client: redis.Redis) -> None:
    assert found(redis_client, *flows())["queue.workers"].level is Level.FAILURE
    # Consumers do not beat.
    assert found(redis_client, queues=["emails"])["queue.workers"].level is Level.WARNING


def test_a_worker_that_is_silent_or_down(
    redis_client: redis.Redis, queue: DelayQueue, flow: Flow
) -> None:
    queue._run("beat", queue.server_time_ms() - 60_000, "gone", json.dumps({"up": True}), 3_600_000)
    finding = found(redis_client, flow)["queue.workers"]
    assert finding.level is Level.WARNING
    assert "silent: gone" in finding.summary
    queue.beat("host:1:abcdef", {"up": False})
    assert "host:1:abcdef is down" in found(redis_client, flow)["queue.workers"].summary


def test_a_worker_that_is_stuck_in_a_handler(
    valkey: Valkey,
    redis_client: redis.Redis,
    queue: DelayQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.doctor.queues.STUCK_SECONDS", 0.3)
    monkeypatch.setattr("worker.runtime.heartbeat.BEAT_SECONDS", 0.1)
    release = threading.Event()

    def handler(_tasks: Sequence[Task]) -> None:
        release.wait(60)

    stuck = Flow(name="examined", handler=handler, lease_seconds=0.1)
    queue.schedule("order-7", 1)
    with running(Worker([stuck], valkey.url)):
        try:
            wait_until(lambda: "queue.stuck" in found(redis_client, stuck), "it to be told")
            finding = found(redis_client, stuck)["queue.stuck"]
        finally:
            release.set()
    assert finding.level is Level.WARNING
    assert "order-7" in finding.summary


def test_a_paused_queue(redis_client: redis.Redis, queue: DelayQueue, flow: Flow) -> None:
    queue.pause()
    assert found(redis_client, flow)["queue.pause"].level is Level.FAILURE


def test_due_tasks_that_nobody_claims(
    redis_client: redis.Redis, queue: DelayQueue, flow: Flow
) -> None:
    queue.schedule("a", queue.server_time_ms() - 6000)
    finding = found(redis_client, flow)["queue.backlog"]
    assert finding.level is Level.FAILURE
    [seconds] = re.findall(r"1 task due and not claimed, the oldest for (\d+) s", finding.summary)
    assert 6 <= int(seconds) <= 60


def test_a_poison_task(valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue) -> None:
    def handler(_tasks: Sequence[Task]) -> None:
        raise ValueError("poison")

    poisoned = Flow(name="examined", handler=handler, max_failures=1)
    queue.schedule("order-7", 1)
    with running(Worker([poisoned], valkey.url)):
        wait_until(lambda: queue.stats().dead, "it to die")
        finding = found(redis_client, poisoned)["queue.dead"]
    assert finding.level is Level.WARNING
    assert finding.summary.startswith("examined: 1 dead letter; the newest: ")
    assert "dead requeue" in finding.advice


def test_keys_of_another_type(redis_client: redis.Redis, queue: DelayQueue, flow: Flow) -> None:
    redis_client.set(queue.keys.leased, "a string")
    findings = found(redis_client, flow)
    assert "WRONGTYPE" in findings["redis.writes"].summary
    assert "WRONGTYPE" in findings["redis.failed"].summary


# -- flows ---------------------------------------------------------------------------------


def listing(records: list[Due]) -> Any:
    """A sweep of these records."""

    def sweep(after: float | None, before: float) -> Iterator[list[Due]]:
        low = float("-inf") if after is None else 1000 * after
        yield [due for due in records if low < due.delay_ms <= 1000 * before]

    return sweep


def test_what_is_overdue_is_reported_with_and_without_redis(
    redis_client: redis.Redis, queue: DelayQueue, flow: Flow
) -> None:
    records = [Due("dead", -90_000), Due("late", -61_000), Due("just", -2000)]
    sweeping = Flow(name="examined", handler=flow.handler, sweep=listing(records))
    queue.schedule("dead", 1)
    dead_letter(queue, [(queue.claim(1, 1000).tasks[0], "bad", None)])
    finding = found(redis_client, sweeping)["flow.overdue"]
    assert finding.level is Level.FAILURE
    assert "1 overdue, the oldest by 61 s" in finding.summary
    finding = found(connect("redis://127.0.0.1:1"), sweeping)["flow.overdue"]
    assert "2 overdue, the oldest by 90 s" in finding.summary


REFUSED = OSError("connection refused")


@pytest.mark.parametrize(
    ("outcome", "said", "level"),
    [
        (REFUSED, "failed 1 time: OSError: connection refused", Level.WARNING),
        (Retry(60_000), "put off 1 time: OSError: connection refused", Level.WARNING),
        (Retry(60_000), "put off 1 time", Level.OK),
        (Retry(60_000, counted=True), "failed 1 time", Level.OK),
    ],
    ids=["failed", "put off for a reason", "put off", "counted"],
)
def test_work_that_is_put_off_is_not_overdue(
    valkey: Valkey, queue: DelayQueue, outcome: Exception, said: str, level: Level
) -> None:
    def handler(_tasks: Sequence[Task]) -> None:
        raise outcome from REFUSED if "put off 1 time:" in said else None

    flow = Flow(
        name="examined",
        handler=handler,
        sweep=listing([Due("order-7", -300_000)]),
        probe=lambda: None,
        backoff=Delays(60),
    )

    def is_put_off() -> bool:
        state = queue.look_up("order-7")
        return state is not None and state.attempts > 0

    with running(Worker([flow], valkey.url)):
        wait_until(is_put_off, "it to be tried")
        [finding] = [each for each in flow_findings(flow, queue) if each.check == "flow.overdue"]
    assert finding.summary.startswith(f"examined: 1 put off, such as order-7: {said}; next try in ")
    assert finding.level is level


def test_tasks_that_redis_has_lost(
    redis_client: redis.Redis, queue: DelayQueue, flow: Flow
) -> None:
    records = [Due("kept", 50_000), Due("lost", 51_000), Due("far", 90_000)]
    queue.schedule("kept", delay_ms=50_000)
    sweeping = Flow(name="examined", handler=flow.handler, sweep=listing(records))
    finding = found(redis_client, sweeping)["flow.tasks"]
    assert finding.level is Level.WARNING
    assert "lost 1 of 2 tasks due within 60 s" in finding.summary
    assert queue.stats().scheduled == 1


def test_rows_that_cannot_be_scheduled(redis_client: redis.Redis, flow: Flow) -> None:
    records = [Due("nan", math.nan), Due("", -9000), Due("late", -8000), Due("lost", 9000)]
    sweeping = Flow(name="examined", handler=flow.handler, sweep=lambda *_: [records])
    findings = found(redis_client, sweeping)
    assert "2 records skipped, such as Due(id='nan'" in findings["flow.rows"].summary
    assert "1 overdue" in findings["flow.overdue"].summary
    assert "lost 2 of 2" in findings["flow.tasks"].summary


def test_a_probe_that_fails_and_what_the_application_finds(
    redis_client: redis.Redis, flow: Flow
) -> None:
    def down() -> None:
        raise Unavailable("no route to the mail server")

    def checks() -> Iterator[Finding]:
        yield Finding("mail.queue", Level.WARNING, "full", "Empty it.")
        raise ZeroDivisionError("a bug")

    failing = Flow(name="examined", handler=flow.handler, probe=down, checks=checks)
    findings = found(redis_client, failing)
    assert "no route to the mail server" in findings["flow.probe"].summary
    assert findings["mail.queue"].advice == "Empty it."
    assert "ZeroDivisionError: a bug" in findings["flow.checks"].summary


def test_what_follows_from_a_cause_that_is_known_is_left_out(redis_client: redis.Redis) -> None:
    def down() -> None:
        raise Unavailable("the table orders is missing")

    def checks() -> Iterator[Finding]:
        yield Finding("sql.schema", Level.FAILURE, "old", "Migrate: the table orders is missing.")

    def flow(name: str, **settings: Any) -> Flow:
        return Flow(name=name, handler=lambda _: None, probe=down, sweep=listing([]), **settings)

    assert {*found(redis_client, flow("a", checks=checks), flow("b"))} == {"sql.schema"}


def test_a_check_that_hangs(redis_client: redis.Redis, flow: Flow) -> None:
    release = threading.Event()

    def checks() -> Iterator[Finding]:
        yield Finding("mail.answers", Level.WARNING, "slowly", "Wait.")
        release.wait(60)

    hanging = Flow(name="examined", handler=flow.handler, checks=checks)
    findings = found(redis_client, hanging, limit_seconds=3)
    release.set()
    assert findings["mail.answers"].summary == "slowly"
    assert findings["doctor.hangs"].level is Level.FAILURE


def test_settings_that_contradict_each_other(redis_client: redis.Redis, flow: Flow) -> None:
    contradicting = Flow(
        name="examined",
        handler=flow.handler,
        sweep=listing([]),
        sweep_seconds=60,
        max_runtime_seconds=1,
    )
    finding = found(redis_client, contradicting)["flow.settings"]
    assert finding.level is Level.WARNING
    assert "lookahead_seconds (30)" in finding.summary
    assert "lease_seconds (10)" in finding.summary


# -- the command ---------------------------------------------------------------------------


@pytest.fixture
def doctor(valkey: Valkey, capsys: pytest.CaptureFixture[str]) -> Doctor:
    def run(*arguments: str, status: int) -> dict[str, Finding]:
        assert main(["doctor", "--redis-url", valkey.url, "--json", *arguments]) == status
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        return {row["check"]: Finding(**row) for row in rows}

    return run


@pytest.mark.usefixtures("flow")
def test_the_exit_status_is_that_of_the_worst(doctor: Doctor, queue: DelayQueue) -> None:
    well = doctor(FLOWS, status=0)
    assert (well["queue.workers"].level, well["queue.workers"].queue) == ("ok", "examined")
    assert well["redis.role"].queue == ""
    queue.schedule("a", 1)
    dead_letter(queue, [(queue.claim(1, 1000).tasks[0], "bad", None)])
    assert doctor(FLOWS, status=1)["queue.dead"].level == "warning"
    queue.pause()
    assert doctor(FLOWS, status=2)["queue.pause"].level == "failure"
    assert doctor("--queue", "examined", "-f", FLOWS, status=2)


def test_flows_that_cannot_be_made_are_a_finding(doctor: Doctor) -> None:
    findings = doctor("no.such.module:flows", status=2)
    assert "no.such.module" in findings["flows"].summary
    assert findings["redis.role"].level == "ok"


@pytest.mark.usefixtures("flow")
def test_for_people_each_line_says_how_it_is_and_what_to_do_next(
    valkey: Valkey, queue: DelayQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.schedule("a", 1)
    dead_letter(queue, [(queue.claim(1, 1000).tasks[0], "bad", None)])
    queue.pause()
    assert main(["doctor", "--redis-url", valkey.url, FLOWS]) == 2
    dead, _, paused, advice, _, counts = capsys.readouterr().out.splitlines()
    assert dead.split()[:2] == ["warning", "queue.dead"]
    assert paused == "failure  queue.pause        examined is paused: nothing is claimed or swept"
    assert advice.strip() == "-> End the pause with `resume` once its reason is gone."
    assert re.fullmatch(r"\d+ ok \(--all lists them\), 1 warning, 1 failure", counts)
    assert main(["doctor", "--redis-url", valkey.url, FLOWS, "--all"]) == 2
    first, *_, counts = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["ok", "redis.version"]
    assert re.fullmatch(r"\d+ ok, 1 warning, 1 failure", counts)
