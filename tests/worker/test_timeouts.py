"""A call that timed out may have run, and is not sent again."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from devtools.valkey import Valkey
from tests.kit.queue_state import state
from tests.kit.settling import ack
from worker import DelayQueue, connect


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    queue = DelayQueue(redis_client, "race")
    queue.schedule_many((f"{n:02}", n, b"x") for n in range(30))
    return queue


@pytest.mark.parametrize("verb", ["claim", "ack"])
def test_what_timed_out_is_not_sent_again(
    valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue, verb: str
) -> None:
    tasks = queue.claim(10, 60_000).tasks
    ack(queue, tasks[:1])  # both scripts are known to the server now
    calls = _calls(redis_client)
    with deaf_to_scripts(valkey.port) as port:
        client = connect(f"redis://127.0.0.1:{port}/0", timeout_seconds=3)
        client.ping()
        cut_off = DelayQueue(client, "race")
        with pytest.raises(redis.TimeoutError):
            cut_off.claim(10, 60_000) if verb == "claim" else ack(cut_off, tasks[1:])
        client.close()
    assert _calls(redis_client) == calls + 1
    assert len(state(queue).get("leased", {})) == (19 if verb == "claim" else 0)


@contextmanager
def deaf_to_scripts(target_port: int) -> Iterator[int]:
    """A port that passes everything on, and every answer back but those to scripts."""

    class Passer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", target_port)) as server:
                while request := self.request.recv(65536):
                    server.sendall(request)
                    answer = server.recv(65536)
                    if b"EVALSHA" not in request:
                        self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Passer) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        yield proxy.server_address[1]
        proxy.shutdown()
        thread.join()


def _calls(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])
