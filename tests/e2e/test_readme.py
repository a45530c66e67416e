"""What the README and the pages under docs/ say is run, as it stands there."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools import accounts, processes
from devtools.processes import ROOT, free_port, wait_until
from devtools.service import Service
from devtools.valkey import Valkey
from orders.clients.domain import parted
from orders.config import variables
from orders.queues import queue_names
from tests.kit.pages import (
    CONFIGURATION,
    COPY_IT,
    FLOWS,
    HTTP_API,
    INDEX,
    MONITORING,
    NOT_RUN,
    OPERATIONS,
    PAGES,
    PAYMENTS,
    README,
    all_blocks,
    bash,
    blocks,
    page,
    the_block,
    unaccounted,
)
from worker import DelayQueue, Flow, Worker


def test_every_block_is_run_by_a_test() -> None:
    assert unaccounted(PAGES) == []


def test_a_block_that_no_test_runs_is_found() -> None:
    pages = {ROOT / "README.md": f"{README}\n```sh\npython -m new.command\n```\n"}
    assert unaccounted(pages) == ["README.md: python -m new.command\n"]


def test_every_reason_for_not_running_a_block_is_about_one() -> None:
    texts = "".join(PAGES.values())
    assert [part for part in NOT_RUN if part not in texts] == []


def test_the_chinese_readme_has_the_same_blocks_and_links() -> None:
    chinese = page("README.zh-CN.md")
    assert all_blocks(chinese) == all_blocks(README)
    in_line = re.compile("(?<!`)`([^`\n]+)`")
    assert sorted(in_line.findall(chinese)) == sorted(in_line.findall(README))
    assert chinese.count("\n## ") == README.count("\n## ")
    assert chinese.count("\n- **") == README.count("\n- **")
    links = re.compile(r"\]\(((?!README)[^)]+)\)")
    assert [*links.findall(chinese)] == [*links.findall(README)]


def test_every_target_that_a_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE)}
    for path, text in PAGES.items():
        assert {*re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE)} <= targets, path


def anchors(text: str) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_catalogue_of_faults_names_each_of_their_files() -> None:
    folder = ROOT / "tests" / "faults"
    page = (folder / "README.md").read_text()
    assert [path for path in folder.glob("test_*.py") if f"`{path.name}`" not in page] == []


def test_the_pages_about_tests_name_only_files_that_exist() -> None:
    for path in (ROOT / "tests" / "README.md", ROOT / "tests" / "faults" / "README.md"):
        places = (path.parent, ROOT / "tests", ROOT)
        named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", path.read_text())
        assert len(named) > 5
        assert [
            name for name in named if not any((place / name).exists() for place in places)
        ] == []


def test_every_link_leads_to_a_file_and_to_a_heading_that_exist() -> None:
    for path, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match("[a-z]+:", target):
                continue
            file, _, fragment = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            assert found.exists(), f"{path}: {target}"
            assert not fragment or fragment in anchors(found.read_text()), f"{path}: {target}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), free_port()) as running:
        with redis.Redis.from_url(running.valkey.url) as client:
            for name in queue_names():  # doctor looks for workers
                wait_until(DelayQueue(client, name).workers, "a worker")
        yield running


@pytest.mark.slow
def test_the_curl_session_works_as_it_is_pasted(service: Service) -> None:
    key = accounts.create_key(service.env, "readme", "orders", "payments", "ops")
    block = the_block("sh", "curl -X PUT", INDEX)
    # However slow the machine, it is paid in time.
    *session, payment = re.split(r"\n\n", block.strip().replace(":15}", ":900}"))
    local = service.base_url.removeprefix("http://")

    output = bash("\n".join(session).replace("localhost:8000", local), {"KEY": key})

    page = json.loads(output[output.rindex('{"data"') :])
    [order] = page["data"]
    assert (order["status"], order["total_minor"]) == ("unpaid", 2500)
    payment = payment.replace("localhost:8000", local).replace("ID", order["id"])
    assert '"status":"applied"' in bash(payment, {"KEY": key})


@pytest.mark.slow
def test_the_commands_for_keys_work_as_they_are_pasted(service: Service) -> None:
    *create, listed, rotate, revoke = (
        the_block("sh", "keys list shop", HTTP_API).strip().splitlines()
    )
    made = bash("\n".join(create), service.env).split()
    assert len(made) == 2
    new = bash(rotate.replace("ID", made[0]), service.env).strip()
    bash(revoke.replace("ID", made[1]), service.env)
    page = bash(listed, service.env)
    assert all(parted(key)[0] in page for key in (*made, new))
    assert page.count("(expired)") == 1


@pytest.mark.slow
def test_the_commands_of_the_operators_page_work(service: Service) -> None:
    scheduled = "python -m worker schedule ID --in 1h --queue order-timeout\n"
    output = bash(scheduled + the_block("sh", "worker doctor", OPERATIONS), service.env)
    assert "ID  removed" in output
    assert "0 warnings, 0 failures" in output
    assert "would be requeued 0" in output


@pytest.mark.slow
def test_a_flows_own_checks_run_as_they_are_pasted() -> None:
    pasted: dict[str, Any] = {}
    exec(the_block("python", "Finding", MONITORING), pasted)  # noqa: S102  our own page
    [finding] = pasted["checks"]()
    assert finding.level == "warning"


@pytest.mark.slow
def test_the_service_runs_by_hand_on_ones_own_servers(valkey: Valkey, database_url: str) -> None:
    port = free_port()
    script = the_block("sh", "export DATABASE_URL", OPERATIONS)
    script = re.sub(r"export DATABASE_URL=\S+", f"export DATABASE_URL={database_url}", script)
    script = re.sub(r"export REDIS_URL=\S+", f"export REDIS_URL={valkey.url}", script)
    script = re.sub(r"(?<=--backpressure 256)$", f" --port {port} &", script, flags=re.MULTILINE)
    script = re.sub(r"^(python -m worker .*)$", r"\1 &", script, flags=re.MULTILINE)
    script += f"""
    trap 'kill $(jobs -p); wait' EXIT
    until curl -sf localhost:{port}/readyz; do sleep 0.2; done
    until python -m worker stats --json; do sleep 0.2; done
    """
    output = bash(script, {})
    assert '"status":"ready"' in output
    assert '"queue": "order-timeout"' in output


@pytest.mark.slow
def test_the_other_flow_runs_and_is_scheduled_from_anywhere(valkey: Valkey, tmp_path: Path) -> None:
    flow, schedule = blocks("python")
    sent = tmp_path / "sent"
    mailer = f"def send_mail(address):\n    return open({str(sent)!r}, 'a').write(address)\n"
    (tmp_path / "reminders.py").write_text(f"{flow}\n\n{mailer}")
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    schedule = schedule.replace("redis://localhost:6379/0", valkey.url)
    due_now = schedule.replace("1_900_000_000_000", "0").replace("queue.cancel", "print")
    env = {"REDIS_URL": valkey.url, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    bash(
        f"cat > {tmp_path}/schedule.py <<'END'\n{schedule}\nEND\npython {tmp_path}/schedule.py", env
    )
    with redis.Redis.from_url(valkey.url) as client:
        assert client.keys("*") == []
    bash(
        f"cat > {tmp_path}/schedule.py <<'END'\n{due_now}\nEND\npython {tmp_path}/schedule.py", env
    )
    command = the_block("sh", "reminders:flows").split("python -m ")[1].split()
    worker = processes.python(command, env, tmp_path / "worker.log")
    wait_until(sent.exists, "the reminder")
    assert worker.stop() == 0
    assert sent.read_text() == "ada@example.org"


@pytest.mark.slow
def test_the_engine_runs_as_a_copy_as_the_page_says(valkey: Valkey, tmp_path: Path) -> None:
    folder, log = tmp_path / "shop", tmp_path / "worker.log"
    copy = the_block("sh", "cp -r worker", COPY_IT).replace("../shop", str(folder))
    bash(copy.partition("python -m pip")[0], {})
    (folder / "reminders.py").write_text(the_block("python", "from timeouts import", COPY_IT))
    script = the_block("sh", "python -m timeouts", COPY_IT).replace("in 5s", "in 0s")
    script = script.replace("redis://localhost:6379/0", valkey.url)
    script = script.replace("reminders:flows &", f"reminders:flows > {log} 2>&1 &")
    script += f"until grep -q 'to ada@example.org' {log}; do sleep 0.1; done; kill $!; wait"
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    bash(f"cd {folder}\n{script}", {"PYTHONPATH": "", "PYTHONUNBUFFERED": "1"})


@pytest.mark.slow
def test_a_flow_runs_by_hand_as_the_page_says(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "reminders.py").write_text(
        f"{the_block('python', 'def remind')}\n\ndef send_mail(address):\n    print('to', address)\n    return True\n"
    )
    script = the_block("sh", "worker schedule customer-7", FLOWS)
    script = re.sub(r"^export PATH=.*\n", "", script)
    script = script.replace("devtools.valkey &", f"devtools.valkey {port} > {tmp_path}/valkey &")
    script = script.replace("6379", str(port)).replace("flows &", f"flows > {tmp_path}/out &")
    script = re.sub(
        r"(?=^python -m worker schedule)",
        f"until grep -q REDIS_URL {tmp_path}/valkey; do sleep 0.1; done\n",
        script,
        flags=re.MULTILINE,
    )
    script += f"""
    until grep -q 'to ada@example.org' {tmp_path}/out; do sleep 0.1; done
    """
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONUNBUFFERED": "1"}
    output = bash(f"trap 'kill $(jobs -p); wait' EXIT\n{script}", env)
    assert "reminders" in output


@pytest.mark.slow
def test_the_plain_delay_queue_runs_as_it_is_pasted(valkey: Valkey, tmp_path: Path) -> None:
    script = the_block("python", "Consumer", FLOWS)
    (tmp_path / "plain.py").write_text(script.replace("redis://localhost:6379/0", valkey.url))
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        output = bash(f"python {tmp_path}/plain.py", {"PYTHONPATH": str(ROOT)})
        assert "to ada@example.org\n" in output
        assert client.keys("*") == [b"{emails}:claims"], "when its last leases end"


@pytest.mark.slow
def test_a_queue_in_asyncio_runs_as_it_is_pasted(valkey: Valkey, tmp_path: Path) -> None:
    script = the_block("python", "asyncio.to_thread", FLOWS)
    (tmp_path / "plain.py").write_text(script.replace("redis://localhost:6379/0", valkey.url))
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        output = bash(f"python {tmp_path}/plain.py", {"PYTHONPATH": str(ROOT)})
        assert output == "1 waiting\nremoved\n"
        assert client.keys("*") == []


@pytest.mark.slow
def test_the_recurring_flow_runs_as_it_is_pasted(
    valkey: Valkey, redis_client: redis.Redis, tmp_path: Path
) -> None:
    (tmp_path / "nightly.py").write_text(the_block("python", "Recurring(", FLOWS))
    env = {"REDIS_URL": valkey.url, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "worker.log"
    queue = DelayQueue(redis_client, "report")
    worker = processes.python(["worker", "run", "nightly:flows"], env, log)
    wait_until(lambda: queue.stats().scheduled, "the next run to be scheduled")
    entries: Any = redis_client.zrange(queue.keys.scheduled, 0, -1)
    [tonight] = [entry.decode() for entry in entries]
    # In the night when clocks go forward there is no 02:00.
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT(02:00:00\+0[12]|03:00:00\+02):00", tonight)
    queue.schedule(tonight, delay_ms=0)
    wait_until(lambda: f"report for {tonight}" in log.read_text(), "the report")
    assert worker.stop() == 0


def test_a_program_of_ones_own_traces_as_it_is_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    pasted: dict[str, Any] = {}
    exec(the_block("python", "configure_tracing", FLOWS), pasted)  # noqa: S102  our own page
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert isinstance(pasted["worker"]([Flow(name="q", handler=lambda _: None)]), Worker)


def test_the_table_of_settings_is_complete() -> None:
    pages = [CONFIGURATION, *(text for path, text in PAGES.items() if "features" in path.parts)]
    rows = [
        row for text in pages for row in re.findall(r"^\| (`[A-Z_`, ]+`) \|", text, re.MULTILINE)
    ]
    documented = {name for row in rows for name in re.findall("[A-Z_]+", row)}
    assert documented >= {name.upper() for name in variables()}
    assert documented <= {*map(str.upper, variables()), "LOG_LEVEL", "METRICS_HOST", "METRICS_PORT"}


@pytest.mark.slow
def test_the_page_on_payments_works_as_it_is_pasted(service: Service) -> None:
    key = accounts.create_key(service.env, "shop", "orders", "payments", "ops")
    local = service.base_url.removeprefix("http://")
    session = re.split(r"\n\n", the_block("sh", "curl -X PUT", INDEX).strip())

    def paste(script: str, id_: str = "") -> str:
        return bash(re.sub(r"\bID\b", id_, script).replace("localhost:8000", local), {"KEY": key})

    placed = paste("\n".join(session[:2]).replace(":15}", ":900}"))
    order = json.loads(placed[placed.rindex('{"id"') :])["id"]
    report = the_block("sh", '"provider":"office"', PAYMENTS)
    assert '"status":"applied"' in paste(report, order)
    due, refund = re.split(r"\n\n", the_block("sh", "refund_due", PAYMENTS).strip())
    assert '"status":"refund_due"' in paste(report.replace("tx-1", "tx-2"), order)
    [payment] = json.loads(paste(due))["data"]
    assert '"status":"refunded"' in paste(refund, payment["id"])


@pytest.mark.slow
def test_a_workers_metrics_and_health_are_served_as_the_page_says(service: Service) -> None:
    serve = the_block("sh", "--metrics-port 9101", MONITORING).strip()
    script = f"""
    trap 'kill $(jobs -p); wait' EXIT
    {serve} &
    until {the_block("sh", "worker health", MONITORING).strip()} | grep '"status": "ok"'; do sleep 0.2; done
    curl -sf localhost:9101/metrics | grep ^worker_queue_readable
    """
    output = bash(script.replace("9101", str(free_port())), service.env)
    assert 'worker_queue_readable{queue="order-timeout"} 1.0' in output


@pytest.mark.slow
def test_the_page_about_the_api_works_as_it_is_pasted(tmp_path: Path) -> None:
    keys = the_block("sh", "keys list shop", HTTP_API)
    session = [block for block in blocks("sh", HTTP_API) if block != keys]
    with Service(tmp_path / "service", free_port()) as service:
        key = accounts.create_key(service.env, "page", "orders", "payments", "ops")
        script = "\n".join(session)
        # However slow the machine, the deadline is moved before it has passed.
        script = script.replace('"timeout_seconds":2}', '"timeout_seconds":60}')
        script = script.replace("timedelta(seconds=3)", "timedelta(seconds=8)")
        script = script.replace("http://localhost:8000", service.base_url)
        script = script.replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
        output = bash(script, {"KEY": key})
    for expected in (
        '"on_hand":15',
        '"reason":"delivered"',
        '"status":"applied"',
        '"client_reference":"cart-1"',
        '"metadata":{"table":7}',
        "order.extended",
        '"reason":"expired"',
        '"status":"refund_due"',
        '"status":"refunded"',
        '"code": "out_of_stock"',
        '"code": "precondition_required"',
        '"code": "order_not_found"',
    ):
        assert expected in output, expected
