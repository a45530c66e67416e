"""Runs of the service to look at. Not part of the distribution."""
