-- How orders and events are read. An order's columns are the fields of `orders.order.domain.Order`, and what it is
-- looked up by.

-- As it was placed.
CREATE OR REPLACE VIEW placed_orders AS
SELECT id, CASE total_minor WHEN 0 THEN 'paid' ELSE 'unpaid' END AS status, currency, total_minor,
    (SELECT json_agg(json_build_object('sku', sku, 'quantity', quantity, 'unit_price_minor', unit_price_minor)
        ORDER BY sku COLLATE "C") FROM order_items WHERE order_id = orders.id) AS items,
    created_at, created_at + timeout_ms * interval '1 millisecond' AS expires_at,
    CASE total_minor WHEN 0 THEN created_at END AS paid_at, NULL::timestamptz AS cancelled_at, NULL AS cancel_reason,
    1 AS version, 0 AS refunded_minor,
    (SELECT name FROM api_clients WHERE api_clients.id = orders.client_id) AS client, client_reference, metadata,
    client_id, idempotency_key, fingerprint
FROM orders;

-- As it is. `order_id` is its id once more: whoever looks up several names both, for all of these tables.
CREATE OR REPLACE VIEW current_orders AS
SELECT id, state.status, currency, total_minor, items, created_at, state.expires_at,
    CASE state.status WHEN 'paid' THEN ended_at END AS paid_at,
    CASE state.status WHEN 'cancelled' THEN ended_at END AS cancelled_at, state.cancel_reason, state.version,
    CASE state.status WHEN 'paid' THEN
        (SELECT coalesce(sum(payments.refunded_minor), 0)::bigint FROM payments
            WHERE payments.order_id = placed_orders.id AND reason IS NULL
              AND payments.refunded_minor > 0)      -- for the index
        ELSE 0 END AS refunded_minor, client, client_reference, metadata, client_id, order_id
FROM placed_orders JOIN (
    SELECT order_id, 'unpaid' AS status, expires_at, version, NULL::timestamptz AS ended_at, NULL AS cancel_reason
    FROM unpaid_orders
    UNION ALL
    SELECT order_id, substr(type, 7), expires_at, version, at, data ->> 'reason'
    FROM order_events WHERE place = 0
) AS state ON order_id = id;

-- Events as they are read: the data of an order's first are the order as it was placed.
CREATE OR REPLACE VIEW shown_events AS
SELECT id, order_id, client_id, type, at, key_id,
    CASE type WHEN 'order.created' THEN (
        SELECT row_to_json(placed) FROM (
            SELECT id, status, currency, total_minor, items, created_at, expires_at, paid_at, cancelled_at,
                cancel_reason, version, refunded_minor, client, client_reference, metadata
            FROM placed_orders WHERE id = order_events.order_id
        ) AS placed
    ) ELSE data END AS data
FROM order_events;
