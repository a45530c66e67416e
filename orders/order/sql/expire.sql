-- Cancel those of a batch of orders that are unpaid past their deadline.
--
-- :ids        uuid[]
-- :not_after  timestamptz  the latest that the clock can show, unless it jumped; null: unknown
-- :in_detail  boolean      whether the origins are asked for
-- returns     kind, id, ms, origin
--
-- Rows, by kind:
--   cancelled  an order that this statement cancelled; ms: how late it was
--   unpaid     one that is still unpaid; ms: when to look at it again, because it expires then, or what stops or keeps
--              it ends. 0 or less: it was locked, most likely by a payment
--   delivery   a webhook delivery to send
--
-- An order ends only by the DELETE: whoever deletes its row of `unpaid_orders` ended it. A row that another transaction
-- has changed since this statement began is compared with the conditions again, as it is when it is locked.
WITH given AS MATERIALIZED (
    SELECT unnest(:ids::uuid[]) AS order_id
),
stops AS MATERIALIZED (                             -- freezes in force; without a client, of everybody
    SELECT client_id, ends_at FROM freezes
    WHERE given_back_at IS NULL
      AND ends_at > timestamptz '1970-01-01 UTC'    -- any: so that the index of these is searched
),
overdue AS (
    SELECT order_id FROM unpaid_orders
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM given))
      AND CASE WHEN expires_at <= least(statement_timestamp(), :not_after::timestamptz)
          THEN true ELSE false END                  -- hidden from the index of deadlines: the ids are looked up
      AND coalesce(kept_until <= least(statement_timestamp(), :not_after::timestamptz), true)
      AND NOT EXISTS (SELECT FROM stops WHERE client_id IS NULL)
      AND client_id <> ALL (ARRAY(SELECT client_id FROM stops WHERE client_id IS NOT NULL))
    ORDER BY order_id
    FOR UPDATE SKIP LOCKED
),
cancelled AS (
    DELETE FROM unpaid_orders WHERE order_id = ANY (ARRAY(SELECT order_id FROM overdue))
    RETURNING order_id, client_id, expires_at, version, client_reference,
        (SELECT date_trunc('milliseconds', clock_timestamp())) AS at  -- one for all, who are locked by then
),
released AS (
    SELECT sku, sum(quantity) AS quantity FROM order_items
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM cancelled))
    GROUP BY sku
),
stock AS (                                          -- always conflicts, and so reads each row once it is locked
    INSERT INTO stock_items (sku, on_hand, reserved, price_minor, currency)
    SELECT sku, quantity, quantity, 0, '' FROM released ORDER BY sku COLLATE "C"
    ON CONFLICT (sku) DO UPDATE SET reserved = stock_items.reserved - excluded.reserved
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, expires_at, version, client_reference)
    SELECT order_id, client_id, 'order.cancelled', at, '{"reason": "expired"}', expires_at, version + 1, client_reference
    FROM cancelled
    -- Announces the ids that follow, and is always true: see orders/sql/sequences.py.
    WHERE (SELECT pg_advisory_xact_lock(1044272163596533760 + nextval('order_events_id_seq'))) IS NOT NULL
    RETURNING id, order_id, client_id, type, at
),
deliveries AS (
    INSERT INTO webhook_deliveries (subscription_id, order_id, event_id, type, created_at, due_at)
    SELECT wish.subscription_id, events.order_id, events.id,
        CASE WHEN wish.type = '*' THEN events.type ELSE wish.type END, events.at, events.at
    FROM events
    JOIN webhook_interests AS wish ON wish.client_id = events.client_id AND wish.event_type IN (events.type, '*')
    WHERE wish.client_id = ANY (ARRAY(SELECT client_id FROM events))
    RETURNING id
)
SELECT 'cancelled' AS kind, order_id AS id, (extract(epoch FROM at - expires_at) * 1000)::bigint AS ms,
    CASE WHEN :in_detail::boolean THEN (SELECT origin FROM orders WHERE orders.id = order_id) END AS origin
FROM cancelled
UNION ALL
SELECT 'unpaid', order_id, CASE WHEN expires_at > statement_timestamp()
    THEN ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)::bigint
    ELSE greatest(                                  -- what frees it may go unnoticed, so at the latest after a minute
        CASE WHEN kept_until > statement_timestamp()
            THEN least(ceil(extract(epoch FROM kept_until - statement_timestamp()) * 1000)::bigint, 60000) END,
        (SELECT max(greatest(ceil(extract(epoch FROM ends_at - statement_timestamp()) * 1000)::bigint, 1000))
            FROM stops WHERE stops.client_id IS NULL OR stops.client_id = unpaid_orders.client_id),
        ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)::bigint)
    END, NULL
FROM unpaid_orders
WHERE order_id = ANY (ARRAY(SELECT order_id FROM given EXCEPT SELECT order_id FROM cancelled))
UNION ALL
SELECT 'delivery', id, NULL, NULL FROM deliveries;
