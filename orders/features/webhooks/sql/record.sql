-- Record what came of a delivery that nobody has claimed, put off or recorded since this process claimed it; return
-- whether a later event of its order waits for the same subscription.
--
-- :id             uuid
-- :token          timestamptz  when its lease ends
-- :status         text
-- :delay_ms       bigint
-- :answer_status  integer
-- :answer_error   text
-- :answer_body    text
-- returns         has_successor
UPDATE webhook_deliveries
SET status = :status::text,
    due_at = date_trunc('milliseconds', statement_timestamp()) + :delay_ms::bigint * interval '1 millisecond',
    body = CASE WHEN :status::text <> 'delivered' THEN body END,
    delivered_at = CASE WHEN :status::text = 'delivered' THEN date_trunc('milliseconds', statement_timestamp()) END,
    last_attempt_at = date_trunc('milliseconds', statement_timestamp()),
    last_status = :answer_status::integer,
    last_error = :answer_error::text,
    last_body = CASE WHEN body IS NOT NULL THEN :answer_body::text END  -- it may repeat what was sent
WHERE id = :id::uuid
  AND CASE WHEN status = 'pending' THEN true ELSE false END
  AND due_at = :token::timestamptz
RETURNING EXISTS (
    SELECT FROM webhook_deliveries AS next
    WHERE next.order_id = webhook_deliveries.order_id
      AND next.subscription_id = webhook_deliveries.subscription_id
      AND next.event_id >= webhook_deliveries.event_id
      AND next.id <> webhook_deliveries.id
      AND CASE WHEN next.status = 'pending' THEN true ELSE false END
      AND next.due_at <= statement_timestamp()
) AS has_successor;
