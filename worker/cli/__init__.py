"""The command line: run a worker, inspect its queues, and repair them."""

from .root import main

__all__ = ["main"]
