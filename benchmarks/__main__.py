"""Runs every benchmark, each in its own process, then updates the figures in the documentation.

python -m benchmarks    # takes about an hour
"""

import subprocess
import sys

from benchmarks import publish

PARTS = ("drain", "lateness", "growth", "disk", "http", "capacity", "simulate")


def main() -> None:
    for part in PARTS:
        print(f"\n== {part}\n", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{part}"], check=True)
    publish.main()


if __name__ == "__main__":
    main()
