-- Lock a page of the oldest orders, and the endings of those that have ended.
--
-- :after_id   uuid         the order that the page before ended with
-- :page_size  integer
-- :kept_ms    bigint       for how long orders are kept
-- :not_after  timestamptz  now, by another clock than the database's
-- returns     id, is_locked, since
--
-- It is old if nothing happened to it since. What others have locked is skipped. Both are locked, because a change of
-- an order's details locks its ending first.
WITH kept AS MATERIALIZED (                         -- neither a clock that jumped nor one of ours alone makes it old
    SELECT least(statement_timestamp(), :not_after::timestamptz) - :kept_ms::bigint * interval '1 millisecond' AS since
),
page AS MATERIALIZED (
    SELECT id FROM orders
    WHERE id > :after_id::uuid
      AND id < (                                    -- which begins with the order's time
          SELECT (lpad(to_hex((extract(epoch FROM since) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid FROM kept)
    ORDER BY id
    LIMIT :page_size::integer
),
locked AS (
    SELECT id FROM orders WHERE id = ANY (ARRAY(SELECT id FROM page))
    FOR UPDATE SKIP LOCKED
),
endings AS (
    SELECT order_id FROM order_events WHERE order_id = ANY (ARRAY(SELECT id FROM locked)) AND place = 0
    FOR UPDATE SKIP LOCKED
)
SELECT id, id = ANY (ARRAY(SELECT order_id FROM endings)) AS is_locked, (SELECT since FROM kept) FROM page ORDER BY id;
