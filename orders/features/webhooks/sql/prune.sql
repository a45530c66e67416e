-- Delete a page of what is left of deleted subscriptions, and of deliveries that ended long ago and were not sent again
-- since, also of subscriptions that are idle.
--
-- :kept_ms    bigint  0: for ever
-- :page_size  bigint
--
-- A deleted subscription is never restored, and whoever sends one of its deliveries now finds it gone.
WITH lines AS (
    SELECT id, status,
        CASE WHEN deleted_at IS NOT NULL THEN 'infinity'
            WHEN :kept_ms::bigint > 0 AND status <> 'pending'
            THEN statement_timestamp() - :kept_ms::bigint * interval '1 millisecond' END AS before
    FROM webhook_subscriptions CROSS JOIN unnest('{pending,delivered,dead}'::text[]) AS status
    WHERE id > '00000000-0000-0000-0000-000000000000'
)
DELETE FROM webhook_deliveries
WHERE id = ANY (ARRAY(
    SELECT old.id FROM lines
    CROSS JOIN LATERAL (
        SELECT id FROM webhook_deliveries
        WHERE subscription_id = lines.id
          AND status = lines.status
          AND created_at < lines.before             -- for the index
          AND due_at < lines.before                 -- when it ended
        ORDER BY created_at, id LIMIT :page_size
    ) AS old
    LIMIT :page_size))
  AND (status <> 'pending'                          -- it may just have been sent again
      OR (SELECT deleted_at FROM webhook_subscriptions WHERE webhook_subscriptions.id = subscription_id) IS NOT NULL);
