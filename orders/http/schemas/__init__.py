"""What a request may contain, and how a response looks."""
