"""deploy/kubernetes and deploy/systemd: manifests and units that their own tools accept, and that start what compose starts."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest

from devtools.processes import ROOT
from worker.runtime.liveness import WorkerHealth
from worker.watch.exposure import health_page
from worker.watch.monitoring import MonitoringServer

KUBERNETES, SYSTEMD = ROOT / "deploy" / "kubernetes", ROOT / "deploy" / "systemd"
SERVICE = (KUBERNETES / "service.yaml").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()
UNITS = sorted(SYSTEMD.iterdir())


def options(text: str) -> set[str]:
    """What granian is given, apart from numbers of processes, threads and the address, which are each one's own."""
    found = {*re.findall(r"--[a-z0-9-]+(?:=[a-z0-9]+)?", text.partition("granian")[2])}
    return {each for each in found if not re.match("--(workers|blocking-threads|host)", each)}


def test_the_api_is_started_as_in_the_compose_file() -> None:
    compose = options(COMPOSE.partition("\n  api:\n")[2].partition("orders.app:create_app")[0])
    unit = (SYSTEMD / "order-timeout-api.service").read_text()
    for other in (SERVICE, unit):
        assert options(other.partition("orders.app:create_app")[0]) == compose


def test_the_worker_is_started() -> None:
    assert "run orders.timeouts:flows" in (SYSTEMD / "order-timeout-worker@.service").read_text()
    assert 'command: [python, -m, worker, run, "orders.timeouts:flows"]' in SERVICE


def manifests(name: str, kind: str) -> dict[str, Any]:
    """The objects of this kind in a file of deploy/kubernetes, by name."""
    yaml: Any = pytest.importorskip("yaml")
    found = yaml.safe_load_all((KUBERNETES / name).read_text())
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


@pytest.mark.parametrize(
    "program",
    [
        "api",  # <metrics/>
        "worker",
    ],
)
def test_prometheus_finds_every_pod_and_may_reach_it(program: str) -> None:
    config = (ROOT / "deploy" / "monitoring" / "prometheus" / "prometheus.yml").read_text()
    name, pods = f"order-timeout-{program}-metrics", f"order-timeout-{program}"
    assert f"  - job_name: {program}\n" in config
    service = manifests("service.yaml", "Service")[name]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"]
    [port] = {int(each) for each in re.findall(r"port: (\d+)", config)}
    assert [each["port"] for each in service["ports"]] == [port]

    template = manifests("service.yaml", "Deployment")[pods]["spec"]["template"]
    assert service["selector"] == template["metadata"]["labels"]
    [container] = template["spec"]["containers"]
    assert {"name": "metrics", "containerPort": port} in container["ports"]

    policy = manifests("network.yaml", "NetworkPolicy")[pods]["spec"]
    assert policy["podSelector"]["matchLabels"] == service["selector"]
    [allowed] = [rule for rule in policy["ingress"] if rule["ports"] == [{"port": "metrics"}]]
    [peer] = allowed["from"]
    assert peer["namespaceSelector"]


STATUSES = get_args(WorkerHealth.__annotations__["status"])


@pytest.fixture(params=STATUSES)
def healthz(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """What a worker says of itself, and the port on which it does."""
    health = WorkerHealth("w", request.param, (), ())
    pages = {"/healthz": health_page(lambda: health)}
    with closing(MonitoringServer("127.0.0.1", 0, pages)) as server:
        yield request.param, server.server_port


def test_only_a_worker_that_works_replaces_another(healthz: tuple[str, int]) -> None:
    status, port = healthz
    spec = manifests("service.yaml", "Deployment")["order-timeout-worker"]["spec"]
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    [container] = spec["template"]["spec"]["containers"]
    python, *probe = container["readinessProbe"]["exec"]["command"]
    assert python == "python"
    probe = [part.replace(":9100/", f":{port}/") for part in probe]
    done = subprocess.run([sys.executable, *probe], capture_output=True, check=False, timeout=60)
    assert (done.returncode == 0) == (status == "ok"), done.stderr


@pytest.mark.slow  # needs kubectl, and what `make test-all` installs
def test_kubernetes_accepts_the_manifests() -> None:
    kubectl = shutil.which("kubectl") or pytest.skip("no kubectl")
    schemas: Any = pytest.importorskip("kubernetes_validate")
    yaml: Any = pytest.importorskip("yaml")
    command = [kubectl, "kustomize", str(KUBERNETES)]
    built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = [*yaml.safe_load_all(built.stdout)]
    for manifest in found:
        schemas.validate(manifest, schemas.latest_version(), strict=True)
    pods = [
        each["spec"]["template"]["spec"] for each in found if "template" in each.get("spec", {})
    ]
    assert len(pods) == 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["containers"][0]["envFrom"]


@pytest.mark.slow  # needs systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze") or pytest.skip("no systemd-analyze")
    environment, program = tmp_path / "env", tmp_path / "program"
    environment.touch()
    program.touch(mode=0o755)
    text = re.sub(r"/opt/order-timeout/bin/[a-z-]+", str(program), unit.read_text())
    copy = tmp_path / unit.name.replace("@", "@1")
    copy.write_text(text.replace("/etc/order-timeout.env", str(environment)))
    command = [systemd, "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
