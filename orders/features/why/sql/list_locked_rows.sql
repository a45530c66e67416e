-- The oldest overdue orders whose own row, or that of a SKU of theirs, is locked for long, and by whom; or those rows of
-- one order, overdue or not.
--
-- :order_id  uuid    null: the oldest overdue ones
-- :long_ms   bigint  how long a lock is held, and an order overdue, before anybody is told
-- returns    order_id, what, pid, prepared, waiter, since, application, state
--
-- Waits for no row: one that is locked names the transaction that locked it (xmax), and that one's lock on its own id names
-- its connection. If that waits for another (waiter), it is the last of these who is told.
WITH RECURSIVE late AS MATERIALIZED (
    SELECT order_id, xmax AS locked_by FROM unpaid_orders WHERE order_id = :order_id::uuid
    UNION ALL
    (SELECT order_id, xmax FROM unpaid_orders
    WHERE :order_id::uuid IS NULL AND expires_at <= statement_timestamp() - :long_ms::bigint * interval '1 millisecond'
    ORDER BY expires_at, order_id LIMIT 20)
),
items AS (
    SELECT order_id, sku FROM order_items WHERE order_id = ANY (ARRAY(SELECT order_id FROM late))
),
needed AS (
    SELECT order_id, 'its own row' AS what, locked_by FROM late
    UNION ALL
    SELECT items.order_id, 'the row of ' || sku || ' in stock_items', stock.xmax
    FROM items JOIN stock_items AS stock USING (sku)
    WHERE stock.sku = ANY (ARRAY(SELECT sku FROM items))
),
locks AS MATERIALIZED (
    SELECT transactionid, pid FROM pg_locks WHERE locktype = 'transactionid' AND granted
),
chain AS (                                          -- from who holds it to who holds up everybody
    SELECT order_id, what, locked_by, pid AS holder, pid, 0 AS place
    FROM needed JOIN locks ON transactionid = locked_by
    WHERE pid IS DISTINCT FROM pg_backend_pid()
    UNION ALL
    SELECT order_id, what, locked_by, holder, unnest(pg_blocking_pids(pid)), place + 1
    FROM chain
    WHERE place < 10                                -- a deadlock has no end
),
found AS (
    SELECT DISTINCT ON (order_id, coalesce(pid, locked_by::text::bigint)) order_id, what, locked_by, holder, pid
    FROM chain
    WHERE pid IS NULL OR pg_blocking_pids(pid) = '{}' OR place = 10
    ORDER BY order_id, coalesce(pid, locked_by::text::bigint), place
)
SELECT found.order_id, found.what, found.pid, p.gid AS prepared,
    CASE WHEN found.holder <> found.pid THEN found.holder END AS waiter,
    coalesce(who.xact_start, p.prepared) AS since, who.application_name AS application, who.state
FROM found
LEFT JOIN pg_stat_activity AS who USING (pid)
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = found.locked_by AND found.pid IS NULL
WHERE coalesce(coalesce(who.xact_start, p.prepared)
    <= clock_timestamp() - :long_ms::bigint * interval '1 millisecond', true)
ORDER BY since, found.order_id, found.what LIMIT 5;
