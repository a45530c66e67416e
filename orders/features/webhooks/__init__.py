"""Webhooks: what the service sends to its clients."""
