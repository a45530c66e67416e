"""The delay queue on Redis."""
