"""Starts servers on this machine for the demo, `make run`, tests and benchmarks."""
