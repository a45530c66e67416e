-- A page of a client's orders with its reference, of a status, or of any, newest first.
--
-- :client_id  uuid
-- :reference  text
-- :status     text    null: any
-- :first_id   uuid    the least id that is wanted
-- :before_id  uuid    after the greatest: an id of a moment, or the last of the page before
-- :page_size  bigint
-- returns     an order
--
-- How it is read: see list_newest.sql.
WITH page AS MATERIALIZED (
    (SELECT order_id FROM unpaid_orders
    WHERE coalesce(:status::text, 'unpaid') = 'unpaid'
      AND client_reference IS NOT NULL              -- for the index
      AND (client_reference, client_id, order_id) >= (:reference::text, :client_id::uuid, :first_id::uuid)
      AND (client_reference, client_id, order_id) < (:reference::text, :client_id::uuid, :before_id::uuid)
    ORDER BY client_reference DESC, client_id DESC, order_id DESC LIMIT :page_size::bigint)
    UNION ALL
    SELECT ended.*
    FROM unnest(ARRAY['order.paid', 'order.cancelled']) AS wanted CROSS JOIN LATERAL (
        SELECT order_id FROM order_events
        WHERE coalesce('order.' || :status::text, wanted) = wanted
          AND client_reference IS NOT NULL
          AND (client_reference, client_id, type, order_id)
              >= (:reference::text, :client_id::uuid, wanted, :first_id::uuid)
          AND (client_reference, client_id, type, order_id)
              < (:reference::text, :client_id::uuid, wanted, :before_id::uuid)
        ORDER BY client_reference DESC, client_id DESC, type DESC, order_id DESC LIMIT :page_size::bigint
    ) AS ended
    ORDER BY order_id DESC LIMIT :page_size::bigint
)
SELECT id, status, currency, total_minor, items, created_at, expires_at, paid_at, cancelled_at, cancel_reason, version,
    refunded_minor, client, client_reference, metadata FROM current_orders
WHERE id = ANY (ARRAY(SELECT order_id FROM page)) AND order_id = ANY (ARRAY(SELECT order_id FROM page))
ORDER BY id DESC;
