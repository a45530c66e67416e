-- Record that a refund of a client's own payment has failed: what it sent back is there again.
--
-- :payment_id  uuid
-- :client_id   uuid
-- :reference   text    the provider's, of the refund
-- :amount      bigint  null, or the refund's
-- :currency    text    null, or the payment's
-- :key_id      uuid    the API key's, or null
-- returns      payment_id
--
-- No row if there is no such payment, the refund has failed before, or it is of another payment, amount or currency. A
-- refund that is not known yet is noted with an amount of 0, so that it changes nothing when it is reported.
--
-- The locks are those of orders/order/sql/refund.sql.
WITH own AS (
    SELECT order_id FROM payments
    WHERE id = :payment_id::uuid AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END
),
open AS (
    SELECT order_id FROM unpaid_orders WHERE order_id = (SELECT order_id FROM own) FOR UPDATE
),
ended AS (
    SELECT id FROM orders WHERE id = (SELECT order_id FROM own) AND NOT EXISTS (SELECT FROM open) FOR NO KEY UPDATE
),
payment AS (
    SELECT * FROM payments
    WHERE id = :payment_id::uuid AND (EXISTS (SELECT FROM open) OR EXISTS (SELECT FROM ended))
    FOR UPDATE
),
entry AS (
    INSERT INTO payment_entries (client_id, provider, kind, reference, payment_id, amount_minor, at, key_id, failed_at)
    SELECT client_id, provider, 'refund', :reference::text, id, 0, date_trunc('milliseconds', clock_timestamp()),
        :key_id::uuid, date_trunc('milliseconds', clock_timestamp())
    FROM payment
    WHERE coalesce(currency = :currency::text, true)
    ON CONFLICT (client_id, provider, kind, reference) DO UPDATE SET failed_at = excluded.failed_at
    WHERE payment_entries.failed_at IS NULL
      AND payment_entries.payment_id = excluded.payment_id
      AND payment_entries.amount_minor = coalesce(:amount::bigint, payment_entries.amount_minor)
    RETURNING *
),
standing AS (                                       -- the latest that stands; locked, as it may have failed meanwhile
    SELECT at, reference FROM payment_entries
    WHERE payment_id = (SELECT payment_id FROM entry)
      AND CASE WHEN kind = 'refund' AND failed_at IS NULL AND reference <> :reference::text
          THEN true ELSE false END                  -- hidden from the primary key: the payment's are looked up
    ORDER BY at DESC LIMIT 1
    FOR UPDATE
),
failed AS (
    UPDATE payments
    SET status = CASE WHEN payment.reason IS NULL THEN 'applied' ELSE 'refund_due' END,
        refunded_minor = payment.refunded_minor - entry.amount_minor,
        refunded_at = CASE WHEN payment.refund_reference = entry.reference
            THEN (SELECT at FROM standing) ELSE payment.refunded_at END,
        refund_reference = CASE WHEN payment.refund_reference = entry.reference
            THEN (SELECT reference FROM standing) ELSE payment.refund_reference END
    FROM entry CROSS JOIN payment                   -- as it is locked, not as it was when this statement began
    WHERE payments.id = ANY (ARRAY(SELECT payment_id FROM entry WHERE amount_minor > 0))
    RETURNING payments.*, entry.amount_minor AS sent_minor, entry.failed_at
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, key_id)
    SELECT order_id, client_id, 'payment.refund_failed', failed_at,
        json_build_object('payment_id', id, 'provider', provider, 'reference', reference,
            'amount_minor', amount_minor, 'currency', currency, 'refund_reference', :reference::text,
            'refund_amount_minor', sent_minor, 'refunded_minor', refunded_minor),
        :key_id::uuid
    FROM failed
)
SELECT payment_id FROM entry;
