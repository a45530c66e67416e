"""Why an order is still unpaid, and who has locked what overdue orders wait for."""
