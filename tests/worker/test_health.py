"""Real workers and what /healthz, /metrics and ``python -m worker health`` say of them."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families as parsed

from devtools.postgres import Postgres
from devtools.processes import ROOT, Process, free_port, python, wait_until
from devtools.valkey import Valkey
from tests.kit.site import Site
from tests.kit.workers import running
from worker import DelayQueue, Flow, Worker, events
from worker.watch.exposure import MetricsUnavailable, exposed
from worker.watch.monitoring import ask


class Health(NamedTuple):
    """What ``python -m worker health`` told."""

    status: int
    body: dict[str, Any]


def health(port: int) -> Health:
    """Ask as a supervisor does; what the process says directly must be the same."""
    done = subprocess.run(
        [sys.executable, "-m", "worker", "health"],
        cwd=ROOT,
        env={**os.environ, "METRICS_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Health(done.returncode, json.loads(done.stdout or "{}"))


def state(port: int) -> tuple[int, str]:
    """The status of /healthz, and what the worker says of itself."""
    status, body = ask(f"http://127.0.0.1:{port}/healthz")
    return status, json.loads(body)["status"]


def flow(port: int) -> dict[str, Any]:
    """What the worker says of its only flow."""
    [found] = json.loads(ask(f"http://127.0.0.1:{port}/healthz")[1])["flows"]
    return dict(found)


def value(port: int, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    _, text = ask(f"http://127.0.0.1:{port}/metrics")
    return sum(
        sample.value
        for family in parsed(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_for_state(port: int, *expected: object) -> None:
    wait_until(lambda: state(port) == expected, f"{expected}", ignoring=OSError)


@pytest.fixture
def start(valkey: Valkey, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts a worker on a factory of `tests.kit.flows`; returns its port. Kills it after the test."""
    started: list[Process] = []

    def start(factory: str) -> int:
        port = free_port()
        env = {"REDIS_URL": valkey.url, "METRICS_PORT": str(port)}
        command = ["worker", "run", f"tests.kit.flows:{factory}"]
        started.append(python(command, env, tmp_path / "worker.log"))
        return port

    yield start
    for process in started:
        process.kill()


Start = Callable[[str], int]


# -- failures ------------------------------------------------------------------------------


def test_a_worker_at_work_is_ok_and_counts_what_it_does(
    redis_client: redis.Redis, start: Start
) -> None:
    port = start("frail")
    wait_for_state(port, 200, "ok")
    queue = DelayQueue(redis_client, "frail")
    queue.schedule_many((f"good {n}", 1, b"") for n in range(100))
    labels = {"queue": "frail", "outcome": "done"}
    wait_until(
        lambda: value(port, "worker_handled_tasks_total", **labels) == 100, "all to be counted"
    )
    assert value(port, "worker_task_lateness_seconds_count", queue="frail") == 100
    assert value(port, "worker_task_lateness_seconds_bucket", le="3600.0") == 0, "due in 1970"
    assert value(port, "worker_queue_live_workers") == 1
    assert value(port, "worker_flow_healthy") == 1
    assert value(port, "process_open_fds") > 0
    found = health(port)
    assert (found.status, found.body["status"]) == (0, "ok")


def test_a_handler_that_is_stuck_fails_until_it_returns(
    redis_client: redis.Redis, start: Start
) -> None:
    port = start("limited")
    DelayQueue(redis_client, "frail").schedule("block", 1)
    wait_for_state(port, 503, "failing")
    [reason] = flow(port)["failures"]
    assert reason.startswith("its handler has run for ")
    assert health(port).status == 1
    assert value(port, "worker_flow_healthy", queue="frail") == 0
    wait_until(lambda: value(port, "worker_handler_overruns_total") == 1, "the overrun")
    redis_client.rpush("unblock", *["now"] * 10)
    wait_for_state(port, 200, "ok")


@pytest.mark.parametrize("what", ["probe", "sweep"])
def test_a_probe_or_a_sweep_that_hangs_fails_until_it_returns(
    redis_client: redis.Redis, start: Start, what: str
) -> None:
    port = start(f"hanging_{what}")
    wait_for_state(port, 503, "failing")
    [reason] = flow(port)["failures"]
    assert reason.startswith(f"its {what} has made no progress for ")
    assert health(port).status == 1
    redis_client.rpush("unblock", *["now"] * 1000)
    wait_for_state(port, 200, "ok")


def test_a_thread_that_died_fails_while_its_worker_ends(
    redis_client: redis.Redis, start: Start
) -> None:
    DelayQueue(redis_client, "frail").schedule("block", 1)
    port = start("torn")
    wait_until(lambda: redis_client.llen("blocked"), "the handler to begin")
    redis_client.set("leave", "yes")
    wait_for_state(port, 503, "failing")
    found = health(port)
    assert found.status == 1
    assert found.body["failures"] == ["the thread 'sweep frail' died"]
    redis_client.rpush("unblock", "now")
    wait_until(lambda: health(port).status == 3, "the worker to end")


def test_a_thread_that_ended_silently_fails(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_client.ping()
    monkeypatch.setattr("worker.runtime.waker.Waker.run", lambda _: None)
    worker = Worker([Flow(name="a", handler=lambda _: None)], valkey.url)
    with running(worker):
        wait_until(lambda: worker.health().status == "failing", "the report")
        assert worker.health().failures == ("the thread 'waker' died",)


def test_claims_that_are_stuck_although_work_is_due_fail(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.lane.STALLED_SECONDS", 0.2)
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", 0.2)
    stick, go_on = threading.Event(), threading.Event()

    def listener(event: events.Event) -> None:
        if isinstance(event, events.Waiting) and stick.is_set():
            go_on.wait(60)

    queue = DelayQueue(redis_client, "a")
    worker = Worker([Flow(name="a", handler=lambda _: None)], valkey.url, listeners=[listener])
    with running(worker):
        wait_until(lambda: worker.health().status == "ok", "the start")
        stick.set()
        queue.schedule("first", 1, b"")
        wait_until(lambda: worker.health().status == "failing", "the report")
        queue.schedule_many((f"{n}", 1, b"") for n in range(50))
        [found] = worker.health().flows
        assert found.failures[0].startswith("its claim has made no progress for ")
        # Of "first" it depends on where the lane was stopped, so it is not counted.
        assert queue.stats().due >= 50
        go_on.set()
        wait_until(lambda: worker.health().status == "ok", "the end")
        wait_until(lambda: not queue.stats().scheduled, "the tasks")


def test_a_worker_that_is_frozen_does_not_answer(
    redis_client: redis.Redis,
    valkey: Valkey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis_client.ping()
    monkeypatch.setattr("worker.watch.monitoring.ASK_SECONDS", 0.5)
    port = free_port()
    env = {"REDIS_URL": valkey.url, "METRICS_PORT": str(port)}
    worker = python(["worker", "run", "tests.kit.flows:frail"], env, tmp_path / "worker.log")
    try:
        wait_for_state(port, 200, "ok")
        worker.signal(signal.SIGSTOP)
        with pytest.raises(OSError, match="timed out"):
            ask(f"http://127.0.0.1:{port}/healthz")
    finally:
        worker.kill()


# -- outages -------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    """The service, with a Redis of its own."""
    made = Site(tmp_path, database_url, {"SWEEP_SECONDS": "0.2"})
    yield made
    made.close()


@pytest.mark.slow
def test_without_redis_a_worker_cancels_from_sql_and_lives_on(site: Site) -> None:
    port = free_port()
    site.start_worker(METRICS_PORT=str(port))
    wait_for_state(port, 200, "ok")
    assert site.valkey is not None
    site.valkey.kill()
    site.place(20, 0, 0, scheduled=False)
    site.wait_until_all_are_cancelled()
    wait_for_state(port, 200, "degraded")
    assert flow(port)["outages"] == ["Redis does not serve claims"]
    assert health(port).status == 0
    wait_until(
        lambda: value(port, "worker_tasks_without_redis_total") == 20, "the sweep to be counted"
    )
    assert value(port, "worker_redis_outage_seconds_total") > 0
    assert value(port, "worker_queue_readable") == 0
    site.valkey.start()
    wait_for_state(port, 200, "ok")


@pytest.mark.slow
def test_without_sql_a_worker_waits_and_is_not_restarted(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    own_postgres.execute("CREATE DATABASE away")
    site = Site(tmp_path, own_postgres.url("away"), {"SWEEP_SECONDS": "0.2"})
    try:
        port = free_port()
        site.start_worker(METRICS_PORT=str(port))
        wait_for_state(port, 200, "ok")
        own_postgres.stop()
        wait_for_state(port, 200, "degraded")
        assert flow(port)["outages"] == ["its records cannot be read"]
        site.queue.schedule("0" * 8 + "-0000-0000-0000-" + "0" * 12, delay_ms=0)
        wait_until(lambda: value(port, "worker_flow_waits") == 1, "the claim to find out")
        wait_until(lambda: value(port, "worker_dependency_outages_total") == 1, "the outage")
        assert flow(port)["outages"] == ["something its handler needs is unavailable"]
        assert health(port).status == 0
        own_postgres.start()
        wait_for_state(port, 200, "ok")
        assert value(port, "worker_dependency_outage_seconds_total") > 0
        assert value(port, "worker_dead_letters_total") == 0
    finally:
        own_postgres.start()
        site.close()


# -- the port ------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_one_line(
    redis_client: redis.Redis, start: Start, valkey: Valkey
) -> None:
    redis_client.ping()
    port = start("frail")
    wait_for_state(port, 200, "ok")
    done = subprocess.run(
        [sys.executable, "-m", "worker", "run", "tests.kit.flows:frail"],
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": valkey.url, "METRICS_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "worker: The port for metrics and health cannot be used. "
        f"127.0.0.1:{port}: Address already in use.\n"
    )


def test_metrics_need_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MetricsUnavailable), exposed([], "", threads=1, host="", port=1):
        pass
