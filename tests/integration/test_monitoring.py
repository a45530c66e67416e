"""What rules, dashboard and page name is there when the API and a worker are scraped."""

import json
import re
import shutil
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from devtools import processes
from devtools.processes import ROOT, Process, free_port, wait_until
from devtools.valkey import Valkey
from tests.conftest import serving
from tests.unit.test_monitoring import PROMETHEUS, RECORDED, metrics_in, queries, rules
from worker.watch.monitoring import ask

#: What Prometheus itself makes of a scrape, and of an alert.
GIVEN = {"up", "ALERTS"}


class Scraped(NamedTuple):
    """An API and a worker, each with a port for its metrics."""

    api: int
    worker: int

    def texts(self) -> list[str]:
        return [ask(f"http://127.0.0.1:{port}/metrics")[1] for port in self]

    def samples(self) -> set[str]:
        """The names of all samples."""
        return {
            sample.name
            for text in self.texts()
            for family in parsed(text)
            for sample in family.samples
        }

    def families(self) -> set[str]:
        """The names under which they are documented, of the service itself."""
        names = {
            name
            for text in self.texts()
            for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        }
        return {name for name in names if not name.startswith(("python_", "process_"))}


@pytest.fixture(scope="module")
def scraped(
    shared_url: str, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scraped]:
    """Both have been at work: an order was paid twice, so that money is due back."""
    folder = tmp_path_factory.mktemp("scraped")
    env = {"DATABASE_URL": shared_url, "REDIS_URL": valkey.url}
    ports, serves_at = Scraped(free_port(), free_port()), free_port()
    healthz = f"http://127.0.0.1:{serves_at}/healthz"
    with serving(env["DATABASE_URL"], valkey.url) as shop:
        order_id = shop.place().get_json()["id"]
        for reference in ("first", "second"):
            shop.pay(order_id, reference)
    api_env = {"METRICS_PORT": str(ports.api), "METRICS_DIR": str(folder / "metrics")}
    started = [
        processes.api({**env, **api_env}, serves_at, folder / "api.log"),
        processes.worker({**env, "METRICS_PORT": str(ports.worker)}, folder / "worker.log"),
    ]
    try:
        wait_until(lambda: ask(healthz), "the API to answer", ignoring=OSError)
        wait_until(ports.texts, "both to be scraped", ignoring=OSError)
        yield ports
    finally:
        for process in started:
            process.kill()


def test_rules_and_dashboards_read_metrics_that_exist(scraped: Scraped) -> None:
    there = scraped.samples() | GIVEN | RECORDED
    for query in [*rules(), *queries()]:
        assert metrics_in(query) <= there, query


def test_a_query_for_a_metric_that_is_not_there_is_found(scraped: Scraped) -> None:
    assert not metrics_in("sum(rate(worker_claim_total[5m]))") <= scraped.samples()


def test_the_metrics_that_the_page_names_exist(scraped: Scraped) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    table = page.partition("| metric | |")[2].partition("\n\n")[0]
    documented = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`([a-z_]+)(?:\{[a-z,]+\})?`", row.split(" | ")[0])
    }
    assert documented
    assert documented <= scraped.families()


# -- a real Prometheus ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def prometheus(scraped: Scraped, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus with our rules, which has scraped both."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus on PATH: install Debian's package prometheus")
    folder = Path(tmp_path_factory.mktemp("prometheus"))
    config = folder / "prometheus.yml"
    config.write_text(
        json.dumps(  # YAML too
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [f"{PROMETHEUS}/rules/*.yml"],
                "scrape_configs": [
                    {
                        "job_name": job,
                        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                    }
                    for job, port in scraped._asdict().items()
                ],
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
    process = Process([*command, f"--web.listen-address={address}"], folder / "prometheus.log")
    try:
        wait_until(
            lambda: asked(f"http://{address}", "count(up == 1)") == ["2"],
            "both to be scraped",
            ignoring=OSError,
        )
        yield f"http://{address}"
    finally:
        process.kill()


def asked(address: str, query: str) -> list[str]:
    """The values that a query finds. Raises AssertionError if Prometheus refuses it."""
    try:
        with urlopen(f"{address}/api/v1/query?{urlencode({'query': query})}", timeout=60) as reply:  # noqa: S310
            found = json.load(reply)
    except HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it starts
            raise
        with error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error
    return [row["value"][1] for row in found["data"]["result"]]


def test_every_query_of_the_dashboard_runs_on_real_metrics(prometheus: str) -> None:
    for query in queries():
        asked(prometheus, query.replace("$queue", ".*").replace("$__rate_interval", "1m"))
    assert asked(prometheus, 'min(worker_flow_healthy{queue=~".*"})') == ["1"]
    assert asked(prometheus, "max(orders_refunds_due)") == ["1"]


def test_no_alert_fires_for_a_service_at_work(prometheus: str) -> None:
    for record in RECORDED - {"job:http_server_errors:ratio_rate5m"}:
        asked(prometheus, record)
    assert asked(prometheus, 'ALERTS{alertstate="firing"}') == []
