-- Cancel a client's own unpaid order, expired or not; returns it.
--
-- :order_id   uuid
-- :client_id  uuid
-- :key_id     uuid  of the API key that it is done with, or null
-- returns     an order, was_kept
--
-- An unpaid order ends only when its row in `unpaid_orders` is deleted: whoever deletes it ended the order.
WITH cancelled AS (
    DELETE FROM unpaid_orders
    WHERE order_id = :order_id::uuid
      AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END  -- hidden from the index of clients
    RETURNING order_id, client_id, expires_at, version, client_reference, kept_until,
        date_trunc('milliseconds', clock_timestamp()) AS at
),
stock AS (                                          -- in effect an UPDATE, of rows read under their locks: all exist
    INSERT INTO stock_items (sku, on_hand, reserved, price_minor, currency)
    SELECT sku, quantity, quantity, 0, '' FROM order_items
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM cancelled)) ORDER BY sku COLLATE "C"
    ON CONFLICT (sku) DO UPDATE SET reserved = stock_items.reserved - excluded.reserved
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, key_id, expires_at, version, client_reference)
    SELECT order_id, client_id, 'order.cancelled', at, '{"reason": "requested"}', :key_id::uuid,
        expires_at, version + 1, client_reference
    FROM cancelled
)
SELECT id, 'cancelled' AS status, currency, total_minor, items, created_at, cancelled.expires_at, paid_at,
    cancelled.at AS cancelled_at, 'requested' AS cancel_reason, cancelled.version + 1 AS version, refunded_minor,
    client, placed_orders.client_reference, metadata, kept_until IS NOT NULL AS was_kept
FROM cancelled CROSS JOIN placed_orders
WHERE id = :order_id::uuid;
