"""Payments under way."""
