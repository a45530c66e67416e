-- Move the deadline of a client's own unpaid order, if it has an expected version; returns it, with the milliseconds
-- until then. No row: there is none, or the deadline is not within the bounds, or past when the order is locked.
--
-- :order_id    uuid
-- :client_id   uuid
-- :versions    text[]       those expected; null: any
-- :expires_at  timestamptz
-- :min_ms      bigint       how soon after the order's creation that may be
-- :max_ms      bigint       and how late
-- :kept_ms     bigint       for how long payments under way may keep it beyond that
-- :key_id      uuid         of the API key that it is done with, or null
-- returns      an order, ms, was_kept
WITH own AS (
    SELECT order_id, expires_at FROM unpaid_orders
    WHERE order_id = :order_id::uuid
      AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END  -- hidden from the index of clients
      AND coalesce(version::text = ANY (:versions::text[]), true)
      AND EXISTS (
          SELECT FROM orders WHERE id = :order_id::uuid
            AND :expires_at::timestamptz >= created_at + :min_ms::bigint * interval '1 millisecond'
            AND :expires_at::timestamptz <= created_at + :max_ms::bigint * interval '1 millisecond')
    FOR UPDATE
),
extended AS (
    UPDATE unpaid_orders SET expires_at = :expires_at::timestamptz, version = version + 1,
        kept_until = CASE WHEN kept_until IS NOT NULL
            THEN :expires_at::timestamptz + :kept_ms::bigint * interval '1 millisecond' END
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM own  -- once it is locked
        WHERE :expires_at::timestamptz >= date_trunc('milliseconds', clock_timestamp())))
    RETURNING order_id, client_id, expires_at, version, kept_until, date_trunc('milliseconds', clock_timestamp()) AS at
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, key_id)
    SELECT extended.order_id, client_id, 'order.extended', at, json_build_object(
            'previous_expires_at', to_char(own.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'expires_at', to_char(extended.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')),
        :key_id::uuid
    FROM extended CROSS JOIN own
)
SELECT id, status, currency, total_minor, items, created_at, extended.expires_at, paid_at, cancelled_at, cancel_reason,
    extended.version, refunded_minor, client, client_reference, metadata,
    (extract(epoch FROM extended.expires_at - at) * 1000)::bigint AS ms, kept_until IS NOT NULL AS was_kept
FROM extended CROSS JOIN placed_orders
WHERE id = :order_id::uuid;
