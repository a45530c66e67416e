"""What watches a worker: logs, metrics and traces."""
