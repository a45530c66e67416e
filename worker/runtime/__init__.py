"""What runs flows: the worker, its threads, and what they share."""
