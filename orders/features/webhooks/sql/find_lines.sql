-- The subscriptions that are not paused and have something to send, soonest first, with when the first of it is due; of
-- all, or of these.
--
-- :ids        uuid[]  null: of all
-- :after_ms   bigint  only what is due later than so many milliseconds from now; null: at any time
-- :before_ms  bigint  and no later than so many; null: at any time
-- returns     id, client_id, due_in_ms
--
-- Of each subscription one entry of the index is read, however long its line is.
SELECT subscription.id, client_id, due_in_ms
FROM (
    SELECT id, client_id FROM webhook_subscriptions
    WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[]))) AND paused_at IS NULL
    UNION ALL
    SELECT id, client_id FROM webhook_subscriptions
    WHERE :ids::uuid[] IS NULL AND paused_at IS NULL
      AND client_id > '00000000-0000-0000-0000-000000000000' AND deleted_at IS NULL     -- the index without deleted ones
) AS subscription
CROSS JOIN LATERAL (
    SELECT (extract(epoch FROM due_at - date_trunc('milliseconds', statement_timestamp())) * 1000)::bigint AS due_in_ms
    FROM webhook_deliveries
    WHERE status = 'pending' AND subscription_id = subscription.id
    ORDER BY subscription_id, due_at, id LIMIT 1
) AS head
WHERE coalesce(due_in_ms > :after_ms::bigint, true)
  AND coalesce(due_in_ms <= :before_ms::bigint, true)
ORDER BY due_in_ms, subscription.id;
