-- Those of these ids of deliveries and subscriptions that something waits for, with the first of these.
--
-- :ids     uuid[]
-- returns  id, subscription_id, client_id, due_in_ms
--
-- A null stands where a subscription is paused, or nothing waits for it.
SELECT id, subscription_id,
    (SELECT client_id FROM webhook_subscriptions
        WHERE webhook_subscriptions.id = subscription_id AND paused_at IS NULL) AS client_id,
    (extract(epoch FROM due_at - date_trunc('milliseconds', statement_timestamp())) * 1000)::bigint AS due_in_ms
FROM webhook_deliveries
WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))
  AND CASE WHEN status = 'pending' THEN true ELSE false END         -- hidden from the index: the ids are looked up
UNION ALL
SELECT id, id, client_id,
    (SELECT (extract(epoch FROM due_at - date_trunc('milliseconds', statement_timestamp())) * 1000)::bigint
        FROM webhook_deliveries
        WHERE status = 'pending' AND subscription_id = webhook_subscriptions.id
        ORDER BY subscription_id, due_at, webhook_deliveries.id LIMIT 1)
FROM webhook_subscriptions
WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[]))) AND paused_at IS NULL;
