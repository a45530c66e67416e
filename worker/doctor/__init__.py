"""Examines Redis, the queues and the flows, and says what to do next. It changes nothing."""

from .examination import examine

__all__ = ["examine"]
