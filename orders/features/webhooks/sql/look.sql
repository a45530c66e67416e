-- The first deliveries of a subscription that may be sent now: two, which tells whether there are more.
--
-- :subscription_id  uuid
-- returns           id, subscription_id, order_id, event_id, type, created_at, due_at, attempts, body, row_version
--
-- One whose order has an earlier event that was not tried yet is passed over: whoever tries that one looks again. A
-- reminder comes after the event that set the deadline.
SELECT id, subscription_id, order_id, event_id, type, created_at, due_at, attempts, body,
    webhook_deliveries.xmin::text AS row_version
FROM webhook_deliveries
WHERE subscription_id = :subscription_id::uuid
  AND status = 'pending'
  AND due_at <= statement_timestamp()
  AND CASE WHEN EXISTS (                            -- asked of each row in turn: as a join, of all of them first
      SELECT FROM webhook_deliveries AS earlier
      WHERE earlier.order_id = webhook_deliveries.order_id
        AND earlier.subscription_id = :subscription_id::uuid
        AND earlier.event_id < webhook_deliveries.event_id
            + CASE WHEN webhook_deliveries.type = 'order.expiring' THEN 1 ELSE 0 END
        AND CASE WHEN earlier.status = 'pending' THEN true ELSE false END
        AND earlier.last_attempt_at IS NULL
        AND earlier.type <> 'order.expiring'
  ) THEN false ELSE true END
ORDER BY due_at, id
LIMIT 2;
