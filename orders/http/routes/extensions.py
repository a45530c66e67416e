"""Operators move many deadlines at once."""

from datetime import datetime
from typing import Any

from orders.bootstrap import Services
from orders.errors import ClientNotFound, KeyReused, SkuNotFound
from orders.http.auth import caller, calling_key, services
from orders.http.contract import raises
from orders.http.routing import Routes
from orders.http.schemas.extensions import ExtensionIn, ExtensionOut
from orders.http.schemas.orders import IdempotencyIn
from orders.order.extensions import Wanted
from orders.sql.ids import named_id

extensions = Routes("extensions", "Extensions", "Many deadlines moved at once.")
#: How long a request takes at most.
SECONDS = 2.0


@extensions.post("/extensions", returns=ExtensionOut, scopes=["ops"])
@raises(ClientNotFound, KeyReused, SkuNotFound)
def extend_orders(header: IdempotencyIn, body: ExtensionIn) -> Any:
    """Move the deadlines of unpaid orders, with overdue ones counted from now.

    It may take several requests: repeat it with the same Idempotency-Key and body until `done`. No
    order is extended twice, and none that was placed after the first request. A dry run uses no key;
    if it is not `done`, there are more orders than it could count in time.
    """
    wanted = wanted_orders(services(), body.client, body.sku, body.placed_after, body.due_before)
    if body.dry_run:
        return services().extensions.count(wanted, seconds=SECONDS)._asdict()
    progress = services().extensions.extend(
        wanted,
        ms=1000 * body.seconds,
        note=body.reason,
        by=calling_key(),
        extension_id=named_id(caller(), header.idempotency_key),
        seconds=SECONDS,
    )
    return progress._asdict()


def wanted_orders(
    services: Services,
    client: str | None,
    sku: str | None,
    placed_after: datetime | None,
    due_before: datetime | None,
) -> Wanted:
    """Raises ClientNotFound, SkuNotFound."""
    client_id = None if client is None else services.clients.id_of(client)
    if sku is not None:
        services.stock.get(sku)
    return Wanted(client_id, sku, placed_after, due_before)
