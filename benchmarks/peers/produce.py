"""Hands tasks to a peer, in a process of its own: its module finds its Redis in the environment.

    python -m benchmarks.peers.produce MODULE prepare|enqueue|schedule < TASKS

A task a line: an order's id to enqueue, or a time to schedule for, in milliseconds since 1970.
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
