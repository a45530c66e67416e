"""What the service knows about its own health."""
