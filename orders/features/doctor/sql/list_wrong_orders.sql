-- Among the newest orders, those whose row, events and payments contradict each other, and how.
--
-- :newest  bigint  how many orders
-- :most    bigint  how many are told
-- returns  id, ends, refunds, early
--
-- An order has a row while it is unpaid, and one terminal event afterwards. It is paid by one payment, unless it cost
-- nothing. What was sent back by its events is what its payments say; and none is cancelled before its deadline.
WITH newest AS (
    SELECT id, total_minor FROM orders
    WHERE id > '00000000-0000-0000-0000-000000000000'  -- any: so that the primary key is read from its end
    ORDER BY id DESC LIMIT :newest::bigint
),
looked_at AS MATERIALIZED (
    SELECT newest.*, events.*, payments.*, (SELECT count(*) FROM unpaid_orders WHERE order_id = newest.id) AS unpaid
    FROM newest
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE place = 0) AS terminal,
            count(*) FILTER (WHERE type = 'order.paid') AS paid,
            count(*) FILTER (WHERE type = 'payment.refund_due') AS said_due,
            coalesce(sum((data ->> 'refund_amount_minor')::bigint
                    * CASE type WHEN 'payment.refund_failed' THEN -1 ELSE 1 END)
                FILTER (WHERE type IN ('payment.refunded', 'order.refunded', 'payment.refund_failed')), 0) AS sent,
            coalesce(bool_or(at < expires_at)
                FILTER (WHERE type = 'order.cancelled' AND data ->> 'reason' = 'expired'), false) AS early
        FROM order_events WHERE order_id = newest.id
    ) AS events
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE reason IS NULL) AS applied, count(reason) AS due,
            coalesce(sum(refunded_minor), 0) AS returned
        FROM payments WHERE order_id = newest.id
    ) AS payments
),
judged AS (
    SELECT id, early, said_due <> due OR sent <> returned AS refunds,
        terminal + unpaid <> 1 OR applied <> CASE WHEN total_minor > 0 THEN paid ELSE 0 END AS ends
    FROM looked_at
)
SELECT id, ends, refunds, early FROM judged
WHERE ends OR refunds OR early
LIMIT :most::bigint;
