"""Runs of the service to look at, and flows to copy. Not part of the distribution."""
