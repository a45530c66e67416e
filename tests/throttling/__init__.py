"""Rate limits and bulkheads."""
