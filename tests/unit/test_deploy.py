"""deploy/kubernetes and deploy/systemd: manifests and units that their own tools accept, and that start what compose starts."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devtools.processes import ROOT

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


def test_the_worker_is_started_and_scaled_by_what_exists() -> None:
    autoscaling = (KUBERNETES / "autoscaling.yaml").read_text()
    [metric] = re.findall(r"query: max\((\w+)\)", autoscaling)
    assert f"`{metric}`" in (ROOT / "docs" / "monitoring.md").read_text()
    [name] = re.findall(r"scaleTargetRef: \{name: (\S+)\}", autoscaling)
    assert f"kind: Deployment\nmetadata: {{name: {name}}}" in SERVICE
    assert "run orders.timeouts:flows" in (SYSTEMD / "order-timeout-worker@.service").read_text()
    assert 'command: [python, -m, worker, run, "orders.timeouts:flows"]' in SERVICE


@pytest.mark.slow  # needs kubectl, and what `make fuzz` installs
def test_kubernetes_accepts_the_manifests() -> None:
    kubectl = shutil.which("kubectl") or pytest.skip("no kubectl")
    schemas: Any = pytest.importorskip("kubernetes_validate")
    yaml: Any = pytest.importorskip("yaml")
    command = [kubectl, "kustomize", str(KUBERNETES)]
    built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    manifests = [*yaml.safe_load_all(built.stdout)]
    for manifest in manifests:
        schemas.validate(manifest, schemas.latest_version(), strict=True)
    pods = [
        each["spec"]["template"]["spec"] for each in manifests if "template" in each.get("spec", {})
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
