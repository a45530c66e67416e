-- A page of a client's orders of a status, or of any, latest deadline first.
--
-- :client_id  uuid
-- :status     text         null: any
-- :after      timestamptz  they were placed after that, and so expire after it
-- :first_id   uuid         the least id of that time
-- :before_at  timestamptz  their deadlines are before that
-- :before_id  uuid         or at it, and the ids before this: the last of the page before
-- :page_size  bigint
-- returns     an order
--
-- How it is read: see list_newest.sql.
WITH page AS MATERIALIZED (
    (SELECT order_id, expires_at FROM unpaid_orders
    WHERE coalesce(:status::text, 'unpaid') = 'unpaid'
      AND client_id BETWEEN :client_id::uuid AND :client_id::uuid
      AND (client_id, expires_at) > (:client_id::uuid, :after::timestamptz)
      AND (client_id, expires_at, order_id) < (:client_id::uuid, :before_at::timestamptz, :before_id::uuid)
      AND CASE WHEN order_id >= :first_id::uuid THEN true ELSE false END  -- hidden from the index of ids
    ORDER BY client_id DESC, expires_at DESC, order_id DESC LIMIT :page_size::bigint)
    UNION ALL
    (SELECT order_id, expires_at FROM order_events
    WHERE type = 'order.paid' AND coalesce(:status::text, 'paid') = 'paid'
      AND client_id BETWEEN :client_id::uuid AND :client_id::uuid
      AND (client_id, expires_at) > (:client_id::uuid, :after::timestamptz)
      AND (client_id, expires_at, order_id) < (:client_id::uuid, :before_at::timestamptz, :before_id::uuid)
      AND CASE WHEN order_id >= :first_id::uuid THEN true ELSE false END
    ORDER BY client_id DESC, expires_at DESC, order_id DESC LIMIT :page_size::bigint)
    UNION ALL
    (SELECT order_id, expires_at FROM order_events
    WHERE type = 'order.cancelled' AND coalesce(:status::text, 'cancelled') = 'cancelled'
      AND client_id BETWEEN :client_id::uuid AND :client_id::uuid
      AND (client_id, expires_at) > (:client_id::uuid, :after::timestamptz)
      AND (client_id, expires_at, order_id) < (:client_id::uuid, :before_at::timestamptz, :before_id::uuid)
      AND CASE WHEN order_id >= :first_id::uuid THEN true ELSE false END
    ORDER BY client_id DESC, expires_at DESC, order_id DESC LIMIT :page_size::bigint)
    ORDER BY expires_at DESC, order_id DESC LIMIT :page_size::bigint
)
SELECT id, status, currency, total_minor, items, created_at, expires_at, paid_at, cancelled_at, cancel_reason, version,
    refunded_minor, client, client_reference, metadata FROM current_orders
WHERE id = ANY (ARRAY(SELECT order_id FROM page)) AND order_id = ANY (ARRAY(SELECT order_id FROM page))
ORDER BY expires_at DESC, id DESC;
