"""The API behind the proxy that docker-compose.yml puts in front of it."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import psycopg
import pytest

from devtools import processes
from devtools.processes import ROOT, Process, free_port, wait_until
from devtools.valkey import Valkey
from orders.features.throttling.rate_limits import WRONG_KEYS_BURST  # <throttling/>
from tests.kit.api import Api
from tests.kit.clock import bound
from tests.kit.databases import missing
from tests.kit.raw_http import CHUNKED, ORDER, Reply, Server


@dataclass
class Site:
    """The API and, in front of it, the proxy."""

    folder: Path
    env: dict[str, str]
    keys: dict[str, str]
    proxy: Process
    api: Process
    front: Server
    #: Where the operators' page is.
    ops: Server
    api_port: int

    def place(self) -> Reply:
        length = f"Content-Length: {len(ORDER)}"
        key = f"Idempotency-Key: {uuid4()}"
        return self.front.request("POST /v1/orders", length, key, body=ORDER)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """All stock, so that orders wait."""
        url = self.env["DATABASE_URL"].replace("+psycopg", "")
        with psycopg.connect(url) as connection:
            connection.execute("LOCK TABLE stock_items")
            yield

    def start_api(self) -> None:
        self.api = processes.api(self.env, self.api_port, self.folder / "api.log")

    def wait_until_ready(self) -> None:
        wait_until(
            lambda: self.front.request("GET /healthz").status == 200,
            "the API to serve",
            ignoring=(OSError, IndexError),
        )


def caddy() -> str:
    """From a wheel, or from PATH."""
    beside_python = Path(sys.executable).parent / "caddy"
    program = str(beside_python) if beside_python.exists() else shutil.which("caddy")
    if program is None:
        missing("Caddy", FileNotFoundError("it is not on PATH"))
    return str(program)


def start_proxy(folder: Path, port: int, api_port: int, ops_port: int) -> Process:
    env = {
        "PORT": str(port),
        "OPS_PORT": str(ops_port),
        "API_ADDRESS": f"127.0.0.1:{api_port}",
        "SITE_ADDRESS": "",
    }
    env |= {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    command = [caddy(), "run", "--config", str(ROOT / "deploy/Caddyfile"), "--adapter", "caddyfile"]
    return Process(command, folder / "caddy.log", env)


@pytest.fixture(scope="module")
def site(
    shared_url: str, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("proxy")
    env = {
        "DATABASE_URL": shared_url,
        "REDIS_URL": valkey.url,
        "TRUSTED_PROXIES": "1",  # <throttling/>
    }
    api = Api(env["DATABASE_URL"], valkey.url)
    api.make_keys()
    api.stock()
    api.close()
    port, api_port, ops_port = free_port(), free_port(), free_port()
    proxy = start_proxy(folder, port, api_port, ops_port)
    process = processes.api(env, api_port, folder / "api.log")
    front, ops = Server(port, api.keys), Server(ops_port, api.keys)
    site = Site(folder, env, api.keys, proxy, process, front, ops, api_port)
    site.wait_until_ready()
    yield site
    assert site.proxy.stop() == 0
    assert site.api.stop() == 0


def test_an_order_is_created_through_the_proxy(site: Site) -> None:
    created = site.place()
    assert created.status == 201
    line = f"GET {created.headers['location']}"
    shown = site.front.request(line, "X-Request-ID: mine", "Accept-Encoding: gzip")
    assert (shown.status, shown.body) == (200, created.body)
    assert shown.headers["x-request-id"] == "mine"
    assert "content-encoding" not in shown.headers


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/metrics/x", "//metrics", "/%6detrics", "/METRICS", "/readyz"),
        *(
            "/ops",
            "/ops/",
            "/ops/view/overview",
            "/ops/static/page.js",
            "//ops",
            "/%6fps",
            "/v1/../ops",
        ),
    ],
)
def test_what_is_internal_is_not_found(site: Site, path: str) -> None:
    refused = site.front.request(f"GET {path}", "X-Request-ID: mine")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["x-request-id"] == "mine"
    # The API's own has a detail.
    assert refused.body == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "code": "not_found",
    }


# <ops>
# <ops>
def test_the_operators_page_has_a_port_of_its_own(site: Site) -> None:
    refused = site.ops.request("GET /ops/view/overview")
    assert (refused.status, refused.body["code"]) == (403, "forbidden")
    with urlopen(f"http://127.0.0.1:{site.ops.port}/ops") as page:
        assert b"<title>Order timeout</title>" in page.read()
    for path in ("/v1/orders", "/metrics", "/docs", "/readyz", "/ops/../v1/orders"):
        assert site.ops.request(f"GET {path}").body["code"] == "not_found", path


# </ops>


# </ops>
def test_slow_senders_cost_the_api_nothing(site: Site) -> None:
    """Ten times as many as it has threads."""
    with site.front.connected(80, site.front.slow_body()):
        assert site.front.seconds("GET /healthz") < bound(1)
        assert [site.place().status for _ in range(5)] == [201] * 5


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        (CHUNKED, False),
        (CHUNKED[:-20], True),
        (CHUNKED.removesuffix(b"0\r\n\r\n"), True),
        (CHUNKED.removesuffix(b"0\r\n\r\n") + b"zz\r\nrubbish\r\n", False),
    ],
    ids=["whole", "cut in a chunk", "without its end", "rubbish after a chunk"],
)
def test_a_body_in_chunks_is_not_executed(site: Site, body: bytes, ends: bool) -> None:  # noqa: FBT001
    before = site.front.request("GET /v1/stock/tea").body
    headers = ("Transfer-Encoding: chunked", f"Idempotency-Key: {uuid4()}")
    refused = site.front.request("POST /v1/orders", *headers, body=body, ends=ends)
    assert refused.status >= 400
    assert site.front.request("GET /v1/stock/tea").body == before


def test_headers_with_an_underscore_are_none_of_ours(site: Site) -> None:
    length = f"Content-Length: {len(ORDER)}"
    headers = (length, f"Idempotency_Key: {uuid4()}", "X_Request_ID: mine")
    refused = site.front.request("POST /v1/orders", *headers, body=ORDER)
    assert refused.status == 400
    assert refused.headers["x-request-id"] != "mine"


# <throttling>
def test_a_stranger_cannot_choose_an_address(site: Site) -> None:
    """Each of these would be a wrong key from another address, and so never one too many."""
    stranger = Server(site.front.port, {"customer": f"{uuid4()}.x"})
    answers = {
        stranger.request("GET /v1/orders", f"X_Forwarded_For: 10.0.{n % 250}.1").status
        for n in range(2 * WRONG_KEYS_BURST)
    }
    assert answers == {401, 429}


# </throttling>


def test_a_body_that_is_too_large_is_a_problem(site: Site) -> None:
    body = ORDER.ljust(16 * 1024 + 1)
    # With a key: the proxy and the API both read the request, and either may answer first.
    headers = (f"Content-Length: {len(body)}", "Idempotency-Key: too large")
    refused = site.front.request("POST /v1/orders", *headers, body=body)
    assert (refused.status, refused.body["code"]) == (413, "request_entity_too_large")
    assert refused.headers["content-type"] == "application/problem+json"
    largest = ORDER.ljust(16 * 1024)
    headers = (f"Content-Length: {len(largest)}", "Idempotency-Key: largest")
    assert site.front.request("POST /v1/orders", *headers, body=largest).status == 201


def test_the_apis_own_errors_pass(site: Site) -> None:
    with site.locked():
        refused = site.place()
    assert (refused.status, refused.body["code"]) == (503, "storage_unavailable")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == "2"


def test_a_restart_of_the_api_is_bridged(site: Site) -> None:
    assert site.api.stop() == 0
    refused = site.place()
    assert (refused.status, refused.body["code"]) == (502, "bad_gateway")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == "2"
    assert refused.headers["x-request-id"]
    site.start_api()
    site.wait_until_ready()
    assert site.place().status == 201


def test_a_request_under_way_is_answered_before_the_proxy_stops(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool, socket.create_server(("127.0.0.1", 0)) as api:
        front = Server(free_port(), {"customer": ""})
        proxy = start_proxy(tmp_path, front.port, api.getsockname()[1], free_port())
        wait_until(lambda: _listens(front.port), "the proxy to listen")
        asked = pool.submit(front.request, "GET /v1/orders")
        connection, _ = api.accept()
        with connection:
            assert connection.recv(4096).startswith(b"GET /v1/orders ")
            stopped = pool.submit(proxy.stop)
            wait_until(lambda: not _listens(front.port), "the proxy to take no more connections")
            assert not stopped.done()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert (asked.result().status, asked.result().body) == (200, b"ok")
        assert stopped.result() == 0


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_domain_is_served_over_https() -> None:
    adapted = subprocess.run(
        [caddy(), "adapt", "--config", str(ROOT / "deploy/Caddyfile"), "--adapter", "caddyfile"],
        env={"SITE_ADDRESS": "orders.example.org"},
        capture_output=True,
        check=True,
    )
    servers = json.loads(adapted.stdout)["apps"]["http"]["servers"].values()
    assert {":443", ":8000"} <= {server["listen"][0] for server in servers}
    for server in servers:
        assert server["read_timeout"] == 10_000_000_000
        assert "request_buffers" in json.dumps(server["routes"])
