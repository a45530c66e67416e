"""Spans for OpenTelemetry."""
