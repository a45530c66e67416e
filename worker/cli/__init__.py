"""The command line: run a worker, inspect its queues, and repair them."""

from .parser import main

__all__ = ["main"]
