"""deploy/monitoring: rules that promtool accepts, a dashboard, and a page that says what to do."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from devtools import processes
from devtools.processes import ROOT, Process, free_port, wait_until
from devtools.valkey import Valkey
from tests.kit.api import serving
from worker.watch.monitoring import ask

FOLDER = ROOT / "deploy" / "monitoring"
PROMETHEUS = FOLDER / "prometheus"
ALERTS = (PROMETHEUS / "rules" / "alerts.yml").read_text()
RECORDING = (PROMETHEUS / "rules" / "recording.yml").read_text()
TESTS = (PROMETHEUS / "tests.yml").read_text()
DASHBOARD: dict[str, Any] = json.loads(
    (FOLDER / "grafana" / "dashboards" / "order-timeout.json").read_text()
)
PAGE = (ROOT / "docs" / "runbook.md").read_text()
TABLE = (ROOT / "docs" / "monitoring.md").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()

NAMES = re.findall(r"- alert: (\w+)", ALERTS)
#: PromQL without what is no metric: strings, selectors, ranges and lists of labels.
NOISE = re.compile(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring) *\([^)]*\)')
WORDS = {"or", "and", "unless", "bool", "offset", "by", "without"}


def metrics_in(query: str) -> set[str]:
    """The names of the metrics that a query reads."""
    names = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?! *\(|[a-zA-Z0-9_:])", NOISE.sub("", query))
    return {*names} - WORDS


def rules() -> list[str]:
    """Every rule's expression."""
    return re.findall(r"^ +expr: (.+)$", ALERTS + RECORDING, re.MULTILINE)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """Every query of the dashboard."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]


RECORDED = {*re.findall(r"- record: (\S+)", RECORDING)}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("max(a_b) > 60", {"a_b"}),
        ('absent(up{job="worker"} == 1)', {"up"}),
        ("histogram_quantile(0.5, sum by (q, le) (rate(x_bucket[5m])))", {"x_bucket"}),
        ('sum(a{x=~"5.."}) or vector(0) / (job:b:rate5m > 0)', {"a", "job:b:rate5m"}),
        ("max by (q) (a) > 60 unless max by (q) (b) > 0", {"a", "b"}),
    ],
)
def test_metrics_are_found_in_a_query(query: str, names: set[str]) -> None:
    assert metrics_in(query) == names


# -- rules ---------------------------------------------------------------------------------


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool on PATH: install Debian's package prometheus")
    done = subprocess.run(
        [program, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "--lint-fatal", "rules/alerts.yml", "rules/recording.yml")


def test_promtool_finds_each_alert_only_when_it_should() -> None:
    promtool("test", "rules", "tests.yml")


def test_a_rule_that_never_fires_is_found(tmp_path: Path) -> None:
    copy = tmp_path / "prometheus"
    shutil.copytree(PROMETHEUS, copy)
    deaf = copy / "rules" / "alerts.yml"
    deaf.write_text(ALERTS.replace("age_seconds) > 60", "age_seconds) > 6000", 1))
    with pytest.raises(AssertionError, match="OrdersOverdue"):
        promtool("test", "rules", str(copy / "tests.yml"))


def test_every_alert_is_tested_documented_and_complete() -> None:
    assert len({*NAMES}) == len(NAMES) > 15
    blocks = re.split(r"^ +- alert: ", ALERTS, flags=re.MULTILINE)[1:]
    for name, block in zip(NAMES, blocks, strict=True):
        assert re.search(rf"^  - name: {name}$", TESTS, re.MULTILINE), f"{name} is not tested"
        assert re.search(r"severity: (critical|warning)\}", block), name
        assert {*re.findall(r"^ {10}(\w+):", block, re.MULTILINE)} == {
            "summary",
            "description",
            "runbook",
        }, name
        assert f"runbook: docs/runbook.md#{name.lower()}\n" in block


def test_the_table_of_alerts_has_all_of_them_with_their_thresholds() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\(runbook.md#(\w+)\) \| (\w+) \| (.*) \| (\w*)(?: ?<.*>)* ?\|$",
        TABLE,
        re.MULTILINE,
    )
    assert [name for name, *_ in rows] == NAMES
    blocks = re.split(r"^ +- alert: ", ALERTS, flags=re.MULTILINE)[1:]
    for (name, section, severity, when, held), block in zip(rows, blocks, strict=True):
        assert section == name.lower()
        assert f"severity: {severity}}}" in block, name
        assert ([held] if held else []) == re.findall(r"^ +for: (\w+)$", block, re.MULTILINE), name
        expression = block.partition("\n")[2].partition("\n")[0]
        for threshold in re.findall(r" >=? ([\d.]+)(?= |$)", expression):
            assert as_read(float(threshold)) in when, f"{name}: {when}"


def as_read(threshold: float) -> str:
    """A number of an expression, as people read it; 0 is any."""
    if 0 < threshold < 1:
        return f"{100 * threshold:g} %"
    for size, unit in ((86_400, "days"), (3600, "h")):
        if threshold and threshold % size == 0:
            return f"{threshold / size:g} {unit}"
    return f"{threshold:,.0f}" if threshold else ""


def test_every_section_of_the_page_is_about_an_alert() -> None:
    _, _, last = PAGE.partition("## If you see this, do that\n")
    sections = re.split(r"^### ", last, flags=re.MULTILINE)[1:]
    assert [section.split("\n", 1)[0] for section in sections] == NAMES, "in the same order"
    assert min(len(section) for section in sections) > 100
    headings = {heading.lower() for heading in re.findall(r"^#+ (\S+)$", PAGE, re.MULTILINE)}
    assert {*re.findall(r"\]\(#(\w+)\)", PAGE)} <= headings


# -- the dashboard -------------------------------------------------------------------------


def test_the_dashboard_shows_every_recorded_metric() -> None:
    used = {name for query in queries() for name in metrics_in(query)}
    assert {name for name in used if ":" in name} == RECORDED


def test_panels_have_titles_of_their_own_and_do_not_overlap() -> None:
    places = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24, panel["title"]
                assert (x, y) not in places, panel["title"]
                places.add((x, y))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] and panel["targets"] for panel in panels())


# -- containers ----------------------------------------------------------------------------


def test_nothing_of_it_is_public_or_needs_a_secret() -> None:
    published = re.findall(r"^ +ports: \[(.*)\]$", COMPOSE, re.MULTILINE)
    assert len(published) == 2
    assert all(port.startswith('"127.0.0.1:') for port in published)
    assert not [port for port in published if "9100" in port]


def test_files_that_containers_mount_exist() -> None:
    mounted = re.findall(r"^ +- \./(\S+?):(\S+):ro$", COMPOSE, re.MULTILINE)
    assert {path for path, _ in mounted} == {
        "deploy/monitoring/prometheus",
        "deploy/monitoring/grafana/provisioning",
        "deploy/monitoring/grafana/dashboards",
    }
    assert all((ROOT / path).is_dir() for path, _ in mounted)
    for _, path in mounted:
        assert path == "/etc/prometheus" or path.startswith("/etc/grafana/")
    provider = (FOLDER / "grafana/provisioning/dashboards/dashboards.yml").read_text()
    assert "path: /etc/grafana/dashboards" in provider
    source = (FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text()
    uids = {panel["datasource"]["uid"] for panel in panels()}
    assert uids == {*re.findall(r"uid: (\w+)", source)}


def test_the_ports_are_those_that_prometheus_scrapes() -> None:
    [port] = re.findall(r'METRICS_PORT: "(\d+)"', COMPOSE)
    config = (PROMETHEUS / "prometheus.yml").read_text()
    assert {*re.findall(r"port: (\d+)", config)} == {port}
    for service in re.findall(r"names: \[(\w+)\]", config):
        assert f"\n  {service}:\n" in COMPOSE


def test_the_workers_health_check_asks_whether_it_works() -> None:
    worker = COMPOSE.partition("\n  worker:\n")[2].partition("\n\n")[0]
    assert "test: [CMD, python, -m, worker, health]" in worker


# -- what is there when the API and a worker are scraped ------------------------------------

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
                    {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
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
