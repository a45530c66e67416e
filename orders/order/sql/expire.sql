-- Cancel those of a batch of orders that are unpaid past their deadline.
--
-- :ids        uuid[]
-- :not_after  timestamptz  the latest time that the clock can show unless it jumped; null: unknown
-- :in_detail  boolean      whether to return a row for each cancelled order
-- returns     kind, id, number, origin
--
-- Rows, by kind:
--   client     a client whose orders were cancelled; number: how many
--   cancelled  a cancelled order; number: how late it was, in ms
--   left       an order that was not cancelled; number: in how many ms to look at it again. 0 or less: it was locked,
--              most likely by a payment. Null: it is not unpaid
--
-- An unpaid order ends only when its row in `unpaid_orders` is deleted, here or in pay.sql or cancel.sql: once, so none
-- is both paid and cancelled. A locked row is skipped. A row that changed after this statement began is checked again
-- once it is locked (READ COMMITTED).
WITH given AS MATERIALIZED (
    SELECT unnest(:ids::uuid[]) AS order_id
),
overdue AS (
    SELECT order_id FROM unpaid_orders
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM given))
      AND CASE WHEN expires_at <= least(statement_timestamp(), :not_after::timestamptz)
          THEN true ELSE false END                  -- hidden from the index of deadlines: the ids are looked up
      AND coalesce(kept_until <= least(statement_timestamp(), :not_after::timestamptz), true)
      AND NOT EXISTS (SELECT FROM stops WHERE client_id IS NULL)  -- everybody's
      AND client_id <> ALL (ARRAY(SELECT client_id FROM stops WHERE client_id IS NOT NULL))
    ORDER BY order_id
    FOR UPDATE SKIP LOCKED
),
cancelled AS (
    DELETE FROM unpaid_orders WHERE order_id = ANY (ARRAY(SELECT order_id FROM overdue))
    RETURNING order_id, client_id, expires_at, version, client_reference,
        (SELECT date_trunc('milliseconds', clock_timestamp())) AS at  -- one for all, who are locked by then
),
stock AS (                                          -- in effect an UPDATE, of rows read under their locks: all exist
    INSERT INTO stock_items (sku, on_hand, reserved, price_minor, currency)
    SELECT sku COLLATE "C", sum(quantity), sum(quantity), 0, '' FROM order_items
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM cancelled))
    GROUP BY sku COLLATE "C" ORDER BY sku COLLATE "C"
    ON CONFLICT (sku) DO UPDATE SET reserved = stock_items.reserved - excluded.reserved
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, expires_at, version, client_reference)
    SELECT order_id, client_id, 'order.cancelled', at, '{"reason": "expired"}', expires_at, version + 1, client_reference
    FROM cancelled
),
rest AS MATERIALIZED (
    SELECT order_id FROM given EXCEPT SELECT order_id FROM cancelled
)
SELECT 'client' AS kind, client_id AS id, count(*) AS number, NULL AS origin FROM cancelled GROUP BY client_id
UNION ALL
SELECT 'cancelled', order_id, (extract(epoch FROM at - expires_at) * 1000)::bigint,
    (SELECT origin FROM orders WHERE orders.id = order_id)
FROM cancelled WHERE :in_detail::boolean
UNION ALL
SELECT 'left', rest.order_id, ceil(1000 * extract(epoch FROM
    CASE
        WHEN expires_at > statement_timestamp() THEN expires_at
        WHEN expires_at IS NOT NULL THEN greatest(expires_at,
            CASE WHEN kept_until > statement_timestamp()  -- at most a minute: what frees it may go unnoticed
                THEN least(kept_until, statement_timestamp() + interval '1 minute') END,
            (SELECT max(greatest(until, statement_timestamp() + interval '1 second'))
                FROM stops WHERE stops.client_id IS NULL OR stops.client_id = unpaid_orders.client_id))
    END - statement_timestamp()))::bigint, NULL
FROM rest LEFT JOIN unpaid_orders
    ON unpaid_orders.order_id = rest.order_id AND unpaid_orders.order_id = ANY (ARRAY(SELECT order_id FROM rest));
