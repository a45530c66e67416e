-- The subscriptions that are not paused and have a delivery that is late between two times from now, soonest
-- first, with when the first one is.
--
-- :after_ms   bigint  null: at any time
-- :before_ms  bigint
-- :late_ms    bigint  how long after it is due a delivery is late
-- returns     id, due_in_ms
--
-- Of each subscription one entry of the index is read, however long its line is.
WITH RECURSIVE heads AS (
    (
        SELECT subscription_id, due_at FROM webhook_deliveries
        WHERE status = 'pending' AND subscription_id > '00000000-0000-0000-0000-000000000000'
        ORDER BY subscription_id, due_at, id LIMIT 1
    )
    UNION ALL
    SELECT after.subscription_id, after.due_at FROM heads
    CROSS JOIN LATERAL (
        SELECT subscription_id, due_at FROM webhook_deliveries
        WHERE status = 'pending' AND subscription_id > heads.subscription_id
        ORDER BY subscription_id, due_at, id LIMIT 1
    ) AS after
),
late AS (
    SELECT subscription_id AS id, due_at + :late_ms::bigint * interval '1 millisecond' AS late_at
    FROM heads
    WHERE (SELECT paused_at IS NULL FROM webhook_subscriptions      -- as a join it might read all of them
        WHERE webhook_subscriptions.id = heads.subscription_id)
)
SELECT id, (extract(epoch FROM late_at - date_trunc('milliseconds', statement_timestamp())) * 1000)::bigint AS due_in_ms
FROM late
WHERE coalesce(late_at > statement_timestamp() + :after_ms::bigint * interval '1 millisecond', true)
  AND late_at <= statement_timestamp() + :before_ms::bigint * interval '1 millisecond'
ORDER BY late_at, id;
