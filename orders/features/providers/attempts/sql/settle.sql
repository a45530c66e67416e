-- Settle locked attempts; their orders, locked too, stay kept by the remaining ones.
--
-- :ids      uuid[]
-- :closed   uuid[]  those of them that their provider closed
-- :outcome  text    unless their money was reported; null: what it is for each
WITH settled AS (
    UPDATE payment_attempts AS attempt
    SET settled_at = date_trunc('milliseconds', clock_timestamp()),
        outcome = CASE
            WHEN EXISTS (
                SELECT FROM payments
                WHERE payments.client_id = attempt.client_id AND payments.provider = attempt.provider
                  AND payments.reference = attempt.reference AND payments.order_id = attempt.order_id
            ) THEN 'succeeded'
            WHEN :outcome::text IS NOT NULL THEN :outcome::text
            WHEN id = ANY (ARRAY(SELECT unnest(:closed::uuid[]))) THEN 'closed'
            WHEN asks THEN 'unknown'
            ELSE 'expired' END
    WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))
      AND CASE WHEN settled_at IS NULL THEN true ELSE false END  -- hidden from the index of open ones
    RETURNING order_id
)
UPDATE unpaid_orders
SET kept_until = (
    SELECT max(CASE WHEN asks THEN kept_until ELSE least(ends_at, kept_until) END)
    FROM payment_attempts
    WHERE payment_attempts.order_id = unpaid_orders.order_id AND settled_at IS NULL
      AND id <> ALL (ARRAY(SELECT unnest(:ids::uuid[])))
)
WHERE order_id = ANY (ARRAY(SELECT order_id FROM settled));
