-- Record a refund of a client's own payment, and its event.
--
-- :payment_id  uuid
-- :client_id   uuid
-- :reference   text    the provider's
-- :amount      bigint  null: all that is left
-- :currency    text    null, or the payment's
-- :key_id      uuid    the API key's, or null
-- returns      payment_id
--
-- No row if there is no such payment, the reference is known, the currency is another one, or less is left.
--
-- The locks of the order and of the payment decide: what is left is what the refund before left. The order is locked
-- whatever its state, so that its events are in commit order.
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
    INSERT INTO payment_entries (client_id, provider, kind, reference, payment_id, amount_minor, at, key_id)
    SELECT client_id, provider, 'refund', :reference::text, id,
        coalesce(:amount::bigint, amount_minor - refunded_minor),
        date_trunc('milliseconds', clock_timestamp()), :key_id::uuid
    FROM payment
    WHERE coalesce(:amount::bigint, amount_minor - refunded_minor) BETWEEN 1 AND amount_minor - refunded_minor
      AND coalesce(currency = :currency::text, true)
    ON CONFLICT DO NOTHING
    RETURNING *
),
refunded AS (
    UPDATE payments
    SET status = CASE WHEN payment.refunded_minor + entry.amount_minor = payment.amount_minor
            THEN 'refunded' ELSE payment.status END,
        refunded_minor = payment.refunded_minor + entry.amount_minor,
        refunded_at = entry.at, refund_reference = entry.reference
    FROM entry CROSS JOIN payment                   -- as it is locked, not as it was when this statement began
    WHERE payments.id = ANY (ARRAY(SELECT payment_id FROM entry))
    RETURNING payments.*, entry.amount_minor AS sent_minor
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, key_id)
    SELECT order_id, client_id, CASE WHEN reason IS NULL THEN 'order.refunded' ELSE 'payment.refunded' END, refunded_at,
        json_build_object('payment_id', id, 'provider', provider, 'reference', reference,
            'amount_minor', amount_minor, 'currency', currency, 'refund_reference', refund_reference,
            'refund_amount_minor', sent_minor, 'refunded_minor', refunded_minor),
        :key_id::uuid
    FROM refunded
)
SELECT payment_id FROM entry;
