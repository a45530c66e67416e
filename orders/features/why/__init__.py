"""Why an order is still unpaid, and who has long held locks that cancellations may be waiting for."""
