"""Why an order is still unpaid, and who has had locks for long that cancellations may wait for."""
