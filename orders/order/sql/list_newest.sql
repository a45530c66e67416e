-- A page of a client's orders of a status, or of any, newest first.
--
-- :client_id  uuid
-- :status     text    null: any
-- :first_id   uuid    the least id that is wanted
-- :before_id  uuid    after the greatest: an id of a moment, or the last of the page before
-- :page_size  bigint
-- returns     an order
--
-- Each status is read from an index in the order of the list, so a page costs the same however many orders there are.
-- The bounds compare rows that begin with the client: only the list's own index has these columns in this order. With
-- plain equalities a planner would also consider the primary key, and read that from its end, past others' orders.
-- BETWEEN has it expect the same of each of the client's indexes, so that the one in the order of the list is used.
WITH page AS MATERIALIZED (
    (SELECT order_id FROM unpaid_orders
    WHERE coalesce(:status::text, 'unpaid') = 'unpaid'
      AND client_id BETWEEN :client_id::uuid AND :client_id::uuid
      AND (client_id, order_id) >= (:client_id::uuid, :first_id::uuid)
      AND (client_id, order_id) < (:client_id::uuid, :before_id::uuid)
    ORDER BY client_id DESC, order_id DESC LIMIT :page_size::bigint)
    UNION ALL
    (SELECT order_id FROM order_events
    WHERE type = 'order.paid' AND coalesce(:status::text, 'paid') = 'paid'
      AND client_id BETWEEN :client_id::uuid AND :client_id::uuid
      AND (client_id, order_id) >= (:client_id::uuid, :first_id::uuid)
      AND (client_id, order_id) < (:client_id::uuid, :before_id::uuid)
    ORDER BY client_id DESC, order_id DESC LIMIT :page_size::bigint)
    UNION ALL
    (SELECT order_id FROM order_events
    WHERE type = 'order.cancelled' AND coalesce(:status::text, 'cancelled') = 'cancelled'
      AND client_id BETWEEN :client_id::uuid AND :client_id::uuid
      AND (client_id, order_id) >= (:client_id::uuid, :first_id::uuid)
      AND (client_id, order_id) < (:client_id::uuid, :before_id::uuid)
    ORDER BY client_id DESC, order_id DESC LIMIT :page_size::bigint)
    ORDER BY order_id DESC LIMIT :page_size::bigint
)
SELECT id, status, currency, total_minor, items, created_at, expires_at, paid_at, cancelled_at, cancel_reason, version,
    refunded_minor, client, client_reference, metadata FROM current_orders
WHERE id = ANY (ARRAY(SELECT order_id FROM page)) AND order_id = ANY (ARRAY(SELECT order_id FROM page))
ORDER BY id DESC;
