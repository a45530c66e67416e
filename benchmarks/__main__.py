"""Runs every benchmark, each in its own process, then updates the figures in the documentation.

    python -m benchmarks [--quick]

It takes about an hour. ``--quick`` takes minutes and is only a smoke test: its figures are neither
kept nor published.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from benchmarks import publish

PARTS: dict[str, list[str]] = {
    "drain": ["--orders", "4000", "--peer-orders", "500", "--repetitions", "1"],
    "cold": ["--orders", "15000", "--repetitions", "1"],
    "lateness": ["--seconds", "3", "--waiting", "10000", "--repetitions", "1"],
    "enqueue": ["--orders", "500", "--repetitions", "1"],
    "memory": ["--checks", "100000"],
    "disk": ["--orders", "2000", "--minutes", "0.05"],
    "dead": ["--letters", "2000"],
    "page": ["--waiting", "10000", "--letters", "1000", "--repetitions", "1"],
    "growth": ["--most", "100000", "--orders", "4000", "--repetitions", "1"],
    "retention": ["--orders", "20000", "--seconds", "1"],
    "migrating": ["--orders", "20000", "--seconds", "1"],
    "calls": ["--requests", "5"],
    "http": ["--seconds", "2", "--repetitions", "1"],
    "hot": ["--seconds", "2", "--orders", "2000", "--repetitions", "1"],
    "herd": ["--herd", "2000", "--seconds", "3"],
    "snapshot": ["--seconds", "2", "--expired", "2000", "--repetitions", "1"],
    "capacity": ["--requests", "100", "--orders", "4000", "--seconds", "1", "--repetitions", "1"],
    "simulate": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Every benchmark.")
    parser.add_argument("--quick", action="store_true", help="a smoke test: small, once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "BENCHMARK_RESULTS": folder} if options.quick else os.environ
        for part, quick in PARTS.items():
            print(f"\n== {part}\n", flush=True)
            command = [sys.executable, "-m", *f"benchmarks.{part}".split()]
            subprocess.run([*command, *(quick if options.quick else [])], env=env, check=True)
    if not options.quick:
        publish.main()


if __name__ == "__main__":
    main()
