-- The subscriptions whose oldest pending delivery has failed three times or more, which takes at least half a minute;
-- with the last answer.
--
-- :most_lines  bigint  how many subscriptions that something waits for are looked at
-- returns      subscription_id, since, status, error, url
WITH RECURSIVE heads AS (                           -- as in list_lines.sql
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
failing AS MATERIALIZED (
    SELECT lines.subscription_id, oldest.created_at AS since, oldest.last_status AS status, oldest.last_error AS error,
        (SELECT url FROM webhook_subscriptions      -- as a join it might read all of them
            WHERE webhook_subscriptions.id = lines.subscription_id AND paused_at IS NULL) AS url
    FROM (SELECT subscription_id FROM heads LIMIT :most_lines) AS lines
    CROSS JOIN LATERAL (
        SELECT created_at, attempts, last_status, last_error FROM webhook_deliveries
        WHERE subscription_id = lines.subscription_id
          AND status = (SELECT 'pending')           -- so that the index in this order is used, not that of pending ones
        ORDER BY created_at, id LIMIT 1
    ) AS oldest
    WHERE oldest.attempts >= 3
)
SELECT subscription_id, since, status, error, url FROM failing
WHERE url IS NOT NULL
ORDER BY since, subscription_id
LIMIT 5;
