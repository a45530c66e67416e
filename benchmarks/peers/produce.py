"""Passes tasks to a peer, in a separate process: the peer's module takes REDIS_URL from the environment.

    python -m benchmarks.peers.produce MODULE prepare|enqueue|schedule < TASKS

One task per line: an order's id to enqueue, or a due time in milliseconds since the epoch.
"""

import importlib
import sys


def main() -> None:
    name, action = sys.argv[1:]
    peer = importlib.import_module(f"benchmarks.peers.{name}")
    lines = sys.stdin.read().splitlines()
    if action == "prepare":
        getattr(peer, "prepare", lambda: None)()
    elif action == "enqueue":
        peer.enqueue(lines)
    else:
        peer.schedule([float(line) for line in lines])


if __name__ == "__main__":
    main()
