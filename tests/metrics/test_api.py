"""What several API processes tell Prometheus, on a port of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from devtools import accounts, processes
from devtools.processes import Process, free_port, wait_until
from devtools.valkey import Valkey
from orders.errors import SettingsInvalid
from orders.features.metrics.shared_counts import prepared
from tests.kit.databases import upgrade
from worker.watch.monitoring import ask

Samples = dict[str, float]


class Site:
    """The API in some processes."""

    def __init__(self, folder: Path, database_url: str, valkey: Valkey) -> None:
        self.folder = folder
        self.port, self.metrics_port = free_port(), free_port()
        self.directory = folder / "metrics"
        self.env = {
            "DATABASE_URL": database_url,
            "REDIS_URL": valkey.url,
            "METRICS_PORT": str(self.metrics_port),
            "METRICS_DIR": str(self.directory),
        }
        upgrade(self.env["DATABASE_URL"])
        self.key = accounts.create_key(self.env, "shop", "orders", "ops")
        self.process: Process | None = None

    def start(self, count: int = 2) -> None:
        command = ["granian", "--interface", "wsgi", "--workers", f"{count}", "--no-ws"]
        command += ["--blocking-threads", "2", "--respawn-failed-workers", "--factory"]
        command += ["--respawn-interval", "0.1", "--port", str(self.port), "orders.app:create_app"]
        self.process = processes.python(command, self.env, self.folder / "api.log")
        wait_until(lambda: len(self.pids()) == count, "every process to count")
        wait_until(lambda: self.get("/readyz") == 200, "the API to serve", ignoring=OSError)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()

    def get(self, path: str) -> int:
        return self.send(Request(f"http://127.0.0.1:{self.port}{path}"))

    def put_stock(self) -> int:
        body = {"on_hand": 100, "price_minor": 100, "currency": "EUR"}
        return self._send_json("PUT", "/v1/stock/tea", body)

    def place(self, key: str) -> int:
        body = {"items": [{"sku": "tea", "quantity": 1}]}
        return self._send_json("POST", "/v1/orders", body, **{"Idempotency-Key": key})

    def _send_json(self, method: str, path: str, body: object, **headers: str) -> int:
        request = Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.key}",
                "Content-Type": "application/json",
                **headers,
            },
        )
        return self.send(request)

    def send(self, request: Request) -> int:
        try:
            with urlopen(request, timeout=60) as response:  # noqa: S310  our own
                return int(response.status)
        except HTTPError as error:
            with error:
                return error.code

    def metrics(self) -> str:
        status, text = ask(f"http://127.0.0.1:{self.metrics_port}/metrics")
        assert status == 200
        return text

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(
            sample.value
            for family in parsed(self.metrics())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def pids(self) -> set[int]:
        """The processes that count."""
        files = self.directory.glob("gauge_livesum_*.db")
        return {int(file.stem.rpartition("_")[2]) for file in files}


@pytest.fixture
def site(database_url: str, valkey: Valkey, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, database_url, valkey)
    yield made
    made.stop()


@pytest.mark.slow
def test_processes_are_added_up_whichever_is_asked(site: Site) -> None:
    site.start()
    assert site.put_stock() == 201
    for n in range(20):
        assert site.place(str(n)) == 201
    assert {site.value("orders_created_total") for _ in range(10)} == {20}
    place = {"method": "POST", "route": "/v1/orders", "status": "201"}
    assert site.value("http_request_duration_seconds_count", **place) == 20
    assert site.value("http_request_duration_seconds_bucket", **place, le="+Inf") == 20
    assert site.value("sql_pool_max_connections") == 2 * 10
    wait_until(lambda: site.value("sql_pool_connections_in_use") == 0, "the last request to end")
    assert site.value("orders_database_readable") == 1


@pytest.mark.slow
def test_labels_do_not_grow_with_what_clients_send(site: Site) -> None:
    """Nor is there a page beside the metrics, or metrics beside the pages."""
    site.start(1)
    status, text = ask(f"http://127.0.0.1:{site.metrics_port}/v1/orders")
    assert (status, text) == (404, "This port has /metrics.\n")
    assert site.get("/metrics") == 404
    for n in range(20):
        assert site.get(f"/nothing/{n}") == 404
        assert site.get(f"/v1/orders/00000000-0000-0000-0000-0000000000{n:02}") == 401
    made_up = Request(f"http://127.0.0.1:{site.port}/v1/orders", method="BREW")
    assert site.send(made_up) == 405
    labels = {
        (sample.labels["method"], sample.labels["route"])
        for family in parsed(site.metrics())
        for sample in family.samples
        if sample.name == "http_request_duration_seconds_count"
    }
    assert labels == {
        ("GET", "none"),
        ("GET", "/v1/orders/<uuid:order_id>"),
        ("GET", "/readyz"),
        ("other", "none"),
    }


@pytest.mark.slow
def test_a_killed_process_leaves_its_counts_and_nothing_else(site: Site) -> None:
    """And a command of Flask's, which neither counts nor serves, nothing at all."""
    site.start()
    assert site.put_stock() == 201
    for n in range(20):
        site.place(str(n))
    victim, _ = before = sorted(site.pids())
    processes.run(["flask", "--app", "orders.app", "keys", "list"], site.env)
    assert sorted(site.pids()) == before
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(site.pids() - {*before}) == 1, "another process")
    wait_until(lambda: site.value("sql_pool_max_connections") == 2 * 10, "two processes")
    assert victim not in site.pids()
    assert site.value("orders_created_total") == 20


@pytest.mark.slow
def test_a_start_finds_nothing_of_the_one_before(site: Site) -> None:
    site.start()
    site.put_stock()
    site.place("k")
    before = site.pids()
    site.stop()
    site.start()
    assert not site.pids() & before
    assert site.value("orders_created_total") == 0


@pytest.mark.slow
def test_the_api_serves_although_its_metrics_cannot(
    site: Site, valkey: Valkey, tmp_path: Path
) -> None:
    site.env["METRICS_PORT"] = str(valkey.port)
    site.start(1)
    assert site.get("/readyz") == 200
    lines = [line for line in processes.events(tmp_path / "api.log") if line["level"] == "error"]
    assert [line["event"] for line in lines] == ["no metrics"]
    assert "Address already in use" in lines[0]["error"]


# -- the directory -------------------------------------------------------------------------


def prepare_elsewhere(directory: Path) -> None:
    """Prepare it in a process that ends."""
    code = "import sys, pathlib; from orders.features.metrics.shared_counts import prepared; prepared(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(directory)], cwd=processes.ROOT, check=True)


def test_the_directory_is_emptied_by_the_first_process_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    prepare_elsewhere(directory)
    (directory / "counter_1.db").touch()
    (directory / "mine.txt").touch()
    prepared(directory)
    assert {path.name for path in directory.iterdir()} == {"lock", "mine.txt"}
    assert directory.stat().st_mode & 0o777 == 0o700
    (directory / "counter_2.db").touch()
    prepare_elsewhere(directory)
    assert (directory / "counter_2.db").exists()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsInvalid, match="METRICS_DIR"):
        prepared(tmp_path / "file")
