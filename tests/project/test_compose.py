"""What docker-compose.yml promises: its secrets, and what Redis lets the service do."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from devtools.make_env import write_env
from devtools.processes import GRANIAN, ROOT, wait_until
from devtools.valkey import Valkey
from orders.queues import queue_names
from tests.kit.settling import ack
from worker import DelayQueue, connect

COMPOSE = (ROOT / "docker-compose.yml").read_text()


def written(path: Path) -> dict[str, str]:
    write_env(path)
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_env_is_written_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    first = written(tmp_path / "first")
    assert (tmp_path / "first").stat().st_mode & 0o777 == 0o600
    assert not set(first.values()) & set(written(tmp_path / "second").values())

    with pytest.raises(FileExistsError):
        write_env(tmp_path / "first")
    assert (tmp_path / "first").read_text() == "".join(f"{k}={v}\n" for k, v in first.items())


def test_every_variable_is_documented_and_every_secret_made(tmp_path: Path) -> None:
    required = set(re.findall(r"\$\{(\w+):\?", COMPOSE))
    documented = re.findall(
        r"^#?([A-Z_0-9]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE
    )
    assert required == set(written(tmp_path / "env"))
    assert {name for name, _ in documented} == set(re.findall(r"\$\{(\w+)", COMPOSE))
    assert {name for name, value in documented if not value} == required


def test_the_log_level_reaches_the_api_and_the_worker() -> None:
    settings = COMPOSE.partition("x-settings:")[2].partition("\n\n")[0]
    assert "  LOG_LEVEL: ${LOG_LEVEL:-}" in settings.splitlines()
    for service in ("api", "worker"):
        text = COMPOSE.partition(f"\n  {service}:\n")[2].partition("\n\n")[0]
        assert "    environment: *settings" in text.splitlines()


def service(name: str) -> str:
    """One service's lines."""
    return COMPOSE.partition(f"\n  {name}:\n")[2].partition("\n\n")[0]


def test_nothing_but_the_proxy_can_be_reached() -> None:
    published = {
        name: re.findall(r'"([^"]+:\d+)"', ports)
        for name in re.findall(r"^  (\w+):$", COMPOSE, re.MULTILINE)
        for ports in re.findall(r"^    ports:((?: .*|\n      - .*)+)$", service(name), re.MULTILINE)
    }
    assert [*published] == ["proxy", "prometheus", "grafana"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert published["proxy"][0] == "127.0.0.1:${API_PORT:-8000}:8000"
    # What shows metrics is only there when it is asked for.
    for name in ("prometheus", "grafana"):
        assert "    profiles: [monitoring]\n" in service(name)
    assert "TRUSTED_PROXIES: 1" in COMPOSE  # <throttling/>


def test_every_server_bounds_its_waits_and_connections() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for option, value in (
        ("--http", "1"),
        ("--http1-header-read-timeout", "5000"),
        ("--backpressure", "256"),
    ):
        assert f"      - {option}={value}\n" in service("api")
        assert GRANIAN[GRANIAN.index(option) + 1] == value
        assert f" {option} {value}" in page


def test_only_the_worker_has_a_way_out() -> None:
    services = COMPOSE.partition("\nservices:\n")[2].partition("\nnetworks:\n")[0]
    names = re.findall(r"^  ([a-z]+):$", services, re.MULTILINE)
    out = [name for name in names if re.search(r"\begress\b", service(name))]
    assert out == [
        "worker",  # <webhooks or providers/>
    ]
    assert "  backend:\n    internal: true" in COMPOSE


@pytest.fixture
def server(valkey: Valkey, tmp_path: Path) -> Iterator[Valkey]:
    """A Valkey with the options in docker-compose.yml."""
    assert valkey.process is not None  # there is one on this machine
    secrets = written(tmp_path / "env")
    _, _, service = COMPOSE.partition("image: valkey/")
    command = service.partition("command: [\n")[2].partition("\n    ]")[0]
    lines = [line for line in command.splitlines() if not line.lstrip().startswith("#")]
    options = [
        quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^\s,]+)', " ".join(lines))
    ]
    made = Valkey(
        tmp_path / "valkey",
        *(re.sub(r"\$\{(\w+).*?\}", lambda found: secrets[found[1]], text) for text in options),
    )
    made.url = f"redis://orders:{secrets['REDIS_PASSWORD']}@127.0.0.1:{made.port}/0"
    yield made.start()
    made.stop()


@pytest.mark.parametrize("name", queue_names())
def test_redis_serves_the_queues_and_nothing_else(server: Valkey, name: str) -> None:
    with connect(server.url) as client, client.pubsub() as pubsub:
        queue = DelayQueue(client, name)
        queue.check_server()
        pubsub.subscribe(queue.keys.channel)
        queue.pause()
        queue.resume()
        for command in ("GET other", "PUBLISH other x", "KEYS *", "FLUSHALL", "CONFIG GET save"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())
    with (
        connect(f"redis://127.0.0.1:{server.port}/0") as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def is_written(client: redis.Redis) -> bool:
    """Whether the server's log holds all it answered: with everysec, a slow disk may keep it waiting."""
    waiting: int = client.info("persistence")["aof_buffer_length"]
    return waiting == 0


def test_what_redis_wrote_is_there_after_it_was_killed(server: Valkey) -> None:
    with connect(server.url, reconnect=True) as client:
        queue = DelayQueue(client, "order-timeout")
        queue.schedule_many([("done", 0, b""), ("waits", 2**52, b"")])
        ack(queue, queue.claim(1, 60_000).tasks)
        before = queue.stats(now_ms=0)
        assert (before.scheduled, before.leased) == (1, 0)

        wait_until(lambda: is_written(client), "the log to be written")
        server.kill()
        server.start()
        assert queue.stats(now_ms=0) == before
