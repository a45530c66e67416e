"""deploy/kubernetes/autoscaling.yaml: more workers while orders are overdue, which a metric of this feature says."""

import re
from typing import Any

import pytest
from jsonschema import validate

from devtools.processes import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
AUTOSCALING = (KUBERNETES / "autoscaling.yaml").read_text()


def test_the_worker_is_scaled_by_what_exists() -> None:
    [metric] = re.findall(r"query: max\((\w+)\)", AUTOSCALING)
    assert f"`{metric}`" in (ROOT / "orders" / "features" / "metrics" / "README.md").read_text()
    [name] = re.findall(r"scaleTargetRef: \{name: (\S+)\}", AUTOSCALING)
    service = (KUBERNETES / "service.yaml").read_text()
    assert f"kind: Deployment\nmetadata: {{name: {name}}}" in service
    [namespace] = re.findall(r"serverAddress: http://prometheus\.(\w+):9090", AUTOSCALING)
    assert f"kubernetes.io/metadata.name: {namespace}" in (KUBERNETES / "network.yaml").read_text()


def closed(**fields: Any) -> dict[str, Any]:
    """The schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
#: What autoscaling.yaml uses of a ScaledObject and of its trigger prometheus. Written by hand from the CRD and
#: the scaler of KEDA 2.20, so a field that is added to the file is to be looked up there, and added here.
SCALED_OBJECT = closed(
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=closed(name=TEXT),
    spec=closed(
        scaleTargetRef=closed(name=TEXT),
        minReplicaCount={"type": "integer", "minimum": 0},
        maxReplicaCount={"type": "integer", "minimum": 1},
        triggers={
            "type": "array",
            "minItems": 1,
            "items": closed(
                type={"const": "prometheus"},
                metricType={"enum": ["AverageValue", "Value"]},
                # All of them text, numbers too.
                metadata=closed(
                    serverAddress={"type": "string", "pattern": r"^https?://[a-z0-9.-]+:\d+$"},
                    query=TEXT,
                    threshold={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
                ),
            ),
        },
    ),
)


def test_keda_accepts_the_autoscaling() -> None:
    yaml: Any = pytest.importorskip("yaml")
    scaled = yaml.safe_load(AUTOSCALING)
    validate(scaled, SCALED_OBJECT)
    assert scaled["spec"]["minReplicaCount"] <= scaled["spec"]["maxReplicaCount"]
