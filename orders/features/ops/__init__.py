"""The operators' page at /ops, and what its script asks for. Not part of the public API."""
