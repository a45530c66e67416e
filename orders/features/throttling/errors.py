"""What is refused while too many want the same."""

from orders.errors import NotAvailable


class StockBusy(NotAvailable, retry_after=1):
    """Too many orders are waiting for this stock. Nothing was changed; try again."""
