"""What is kept of orders, and for how long."""
