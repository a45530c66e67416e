"""The SQL statements of the doctor, each with a name and a sentence.

All of them only read, and only a bounded part of the tables.
"""

import sqlalchemy as sa

from orders.sql.expressions import Instant, one_of, unindexed
from orders.sql.statements import FIRST
from orders.sql.tables import (
    IS_EXPIRED,
    PENDING,
    TERMINAL,
    order_events,
    order_items,
    orders,
    payments,
    unpaid_orders,
)
from orders.sql.tables import stock_items as stock
from orders.sql.tables import webhook_deliveries as deliveries
from orders.sql.tables import webhook_subscriptions as subscriptions
from orders.webhooks.repository import heads_of_lines

p = sa.bindparam

#: A webhook that failed this often has failed for at least half a minute.
FAILED_OFTEN = 3
#: How many problems of a kind are read.
NAMED = 5

# The server's version, whether it takes writes, and its clock in seconds since the epoch.
GET_SERVER = sa.text(
    "SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,"
    " current_setting('transaction_read_only') = 'on' AS read_only,"
    " extract(epoch FROM clock_timestamp())::float8 AS clock"
)
# This session's settings, and the statements that would give its role others.
GET_SETTINGS = sa.text(
    "SELECT wanted.name, wanted.value, format('ALTER ROLE %I IN DATABASE %I SET %s = %L;', current_user,"
    " current_database(), wanted.name, wanted.value) AS remedy FROM json_each_text(:wanted) AS wanted (name, value)"
    " JOIN pg_settings ON lower(pg_settings.name) = wanted.name WHERE split_part(setting, ',', 1) <> wanted.value ORDER BY 1"
).bindparams(sa.bindparam("wanted", type_=sa.JSON))
# The indexes in our schema that work.
GET_INDEXES = sa.text(
    "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " WHERE c.relnamespace = current_schema()::regnamespace AND i.indisvalid AND i.indisready"
)

_unpaid = (
    sa.select(unpaid_orders.c.order_id)
    .where(unpaid_orders.c.expires_at > sa.literal(FIRST.at, Instant))
    .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    .limit(p("most_unpaid"))
    .cte("unpaid")
)
_by_orders = (
    sa.select(order_items.c.sku, sa.func.sum(order_items.c.quantity).label("quantity"))
    .where(one_of(order_items.c.order_id, sa.select(_unpaid.c.order_id)))
    .group_by(order_items.c.sku)
    .cte("by_orders")
)
_shelf = (
    sa.select(stock.c.sku, stock.c.on_hand, stock.c.reserved)
    .where(stock.c.sku > "")
    .order_by(stock.c.sku)
    .limit(p("most_skus"))
    .cte("shelf")
)
_count = sa.select(sa.func.count()).select_from(_unpaid).scalar_subquery()
_quantity = sa.func.coalesce(_by_orders.c.quantity, 0)
# Adds to what is reserved of one SKU what is missing from it, while everything runs: orders that are placed
# and end meanwhile change both sides alike. By how much it is wrong is read from one snapshot, the
# statement's, and added to the row as it is once it is locked.
MEND_STOCK = (
    "UPDATE stock_items SET reserved = reserved"
    " + (SELECT coalesce(sum(quantity), 0) FROM order_items JOIN unpaid_orders USING (order_id) WHERE sku = '{sku}')"
    " - (SELECT reserved FROM stock_items WHERE sku = '{sku}')"
    " WHERE sku = '{sku}';"
)
# SKUs whose reserved stock is not what unpaid orders reserve; if not all unpaid orders are read, those
# that reserve less.
GET_WRONG_STOCK = (
    sa.select(_shelf.c.sku, _shelf.c.on_hand, _shelf.c.reserved, _quantity.label("by_orders"))
    .select_from(_shelf.outerjoin(_by_orders, _by_orders.c.sku == _shelf.c.sku))
    .where(
        sa.or_(
            _shelf.c.reserved < _quantity,
            sa.and_(_shelf.c.reserved > _quantity, _count < p("most_unpaid")),
            _shelf.c.on_hand < _shelf.c.reserved,
        )
    )
    .order_by(_shelf.c.sku)
    .limit(NAMED)
)

_newest = (
    sa.select(orders)
    .where(orders.c.id > sa.literal(FIRST.id, orders.c.id.type))
    .order_by(orders.c.id.desc())
    .limit(p("newest"))
    .cte("newest")
)


def _events(*conditions: sa.ColumnElement[bool] | sa.TextClause) -> sa.ScalarSelect[int]:
    """How many events of an order there are."""
    found = sa.select(sa.func.count()).where(order_events.c.order_id == _newest.c.id, *conditions)
    return found.scalar_subquery()


def _payments(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """How many such payments an order has."""
    found = sa.select(sa.func.count()).where(payments.c.order_id == _newest.c.id, *conditions)
    return found.scalar_subquery()


def _flag(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.case((condition, 1), else_=0)


_rows = sa.select(sa.func.count()).where(unpaid_orders.c.order_id == _newest.c.id).scalar_subquery()
_is_paid = _events(order_events.c.type == "order.paid")
# An order has a row while it is unpaid, and one terminal event afterwards.
_ends_wrong = sa.or_(
    _rows + _events(TERMINAL) != 1,
    _payments(payments.c.reason.is_(None))
    != sa.case((_newest.c.total_minor > 0, _is_paid), else_=0),
)
_amount = sa.cast(order_events.c.data.op("->>")("refund_amount_minor"), sa.BigInteger)
_failed = order_events.c.type == "payment.refund_failed"
_sent = sa.select(sa.func.sum(sa.case((_failed, -_amount), else_=_amount))).where(
    order_events.c.order_id == _newest.c.id,
    _failed | order_events.c.type.in_(["payment.refunded", "order.refunded"]),
)
_returned = sa.select(sa.func.sum(payments.c.refunded_minor)).where(
    payments.c.order_id == _newest.c.id
)
_refund_wrong = sa.or_(
    _events(order_events.c.type == "payment.refund_due")
    != _payments(payments.c.reason.is_not(None)),
    sa.func.coalesce(_sent.scalar_subquery(), 0)
    != sa.func.coalesce(_returned.scalar_subquery(), 0),
)
_early = _events(unindexed(IS_EXPIRED), order_events.c.at < order_events.c.expires_at) > 0
# Among the newest orders, those whose row, events and payments contradict each other, and how.
GET_WRONG_ORDERS = (
    sa.select(
        _newest.c.id,
        _flag(_ends_wrong).label("ends"),
        _flag(_refund_wrong).label("refunds"),
        _flag(_early).label("early"),
    )
    .where(sa.or_(_ends_wrong, _refund_wrong, _early))
    .limit(NAMED)
)

_lines = sa.select(heads_of_lines()).limit(p("most_lines")).subquery("lines")
_oldest = (
    sa.select(deliveries)
    .where(
        deliveries.c.subscription_id == _lines.c.subscription_id,
        # As a subquery, so that the index which is in this order is used, and not the one of pending ones.
        deliveries.c.status == sa.select(PENDING).scalar_subquery(),
    )
    .order_by(deliveries.c.created_at, deliveries.c.id)
    .limit(1)
    .lateral("oldest")
)
_failing = (
    sa.select(
        _lines.c.subscription_id,
        _oldest.c.created_at.label("since"),
        _oldest.c.last_status.label("status"),
        _oldest.c.last_error.label("error"),
        # A subquery, so that each row is found by its primary key, however many there are.
        sa.select(subscriptions.c.url)
        .where(
            subscriptions.c.id == _lines.c.subscription_id,
            subscriptions.c.paused_at.is_(None),
            subscriptions.c.deleted_at.is_(None),
        )
        .scalar_subquery()
        .label("url"),
    )
    .select_from(_lines.join(_oldest, sa.true()))
    .where(_oldest.c.attempts >= FAILED_OFTEN)
    .subquery("failing")
)
# Subscriptions whose oldest pending webhook keeps failing: since when, and an answer of the endpoint.
GET_FAILING_WEBHOOKS = (
    sa.select(_failing)
    .where(_failing.c.url.is_not(None))
    .order_by(_failing.c.since, _failing.c.subscription_id)
    .limit(NAMED)
)
