"""The demo. Not part of the distribution."""
