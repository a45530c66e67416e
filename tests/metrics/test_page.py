"""What the feature's page says is run, as it stands there."""

from pathlib import Path

import pytest

from devtools.processes import free_port
from devtools.service import Service
from tests.kit.pages import bash, page, the_block

PAGE = page("orders/features/metrics/README.md")


@pytest.mark.slow
def test_metrics_are_served_as_the_page_says(tmp_path: Path) -> None:
    port = str(free_port())
    serve = the_block("sh", "METRICS_PORT=9100", PAGE).strip()
    serve = serve.replace("granian ", f"granian --port {free_port()} ")
    serve = serve.replace(
        "--workers 2", "--workers 1"
    )  # granian ignores SIGTERM while it starts more
    script = f"""
    trap 'kill $(jobs -p); wait' EXIT
    {serve} &
    until curl -sf localhost:9100/metrics | grep ^orders_; do sleep 0.2; done
    """
    with Service(tmp_path / "service", free_port()) as service:
        env = {**service.env, "METRICS_DIR": f"{tmp_path}/metrics"}
        assert "orders_database_readable 1.0" in bash(script.replace("9100", port), env)
