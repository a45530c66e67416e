-- The subscriptions whose oldest pending delivery has failed three times or more, which takes at least half a minute;
-- with the last answer.
--
-- returns  subscription_id, since, status, error, url
SELECT subscription.id AS subscription_id, oldest.created_at AS since, last_status AS status, last_error AS error, url
FROM webhook_subscriptions AS subscription
CROSS JOIN LATERAL (
    SELECT created_at, attempts, last_status, last_error FROM webhook_deliveries
    WHERE subscription_id = subscription.id
      AND status = (SELECT 'pending')                -- so that the index in this order is used, not that of pending ones
    ORDER BY created_at, id LIMIT 1
) AS oldest
WHERE subscription.id > '00000000-0000-0000-0000-000000000000' AND paused_at IS NULL AND attempts >= 3
ORDER BY since, subscription_id LIMIT 5;
