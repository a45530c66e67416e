"""The order service: what an order is, how it is kept, and how it is reached."""
