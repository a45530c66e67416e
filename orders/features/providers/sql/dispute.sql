-- Record what is reported of a dispute about a client's own payment, and its event.
--
-- :payment_id  uuid
-- :client_id   uuid
-- :kind        text    opened, won or lost
-- :reference   text    the provider's, of the dispute
-- :amount      bigint  null: the whole payment
-- :currency    text    null, or the payment's
-- :key_id      uuid    the API key's, or null
-- returns      payment_id
--
-- No row if there is no such payment, this is known, or the dispute is another payment's, the currency is another one,
-- or the payment is smaller.
--
-- The locks are those of orders/order/sql/refund.sql, but for the payment's: nothing of it changes.
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
    SELECT *, coalesce(:amount::bigint, amount_minor) AS disputed_minor,
        date_trunc('milliseconds', clock_timestamp()) AS at
    FROM payments
    WHERE id = :payment_id::uuid AND (EXISTS (SELECT FROM open) OR EXISTS (SELECT FROM ended))
      AND coalesce(:amount::bigint, amount_minor) <= amount_minor AND coalesce(currency = :currency::text, true)
),
dispute AS (                                        -- is of one payment: of two at once, the second finds the first
    INSERT INTO payment_entries (client_id, provider, kind, reference, payment_id, amount_minor, at)
    SELECT client_id, provider, 'dispute', :reference::text, id, disputed_minor, at FROM payment
    ON CONFLICT (client_id, provider, kind, reference) DO UPDATE SET payment_id = excluded.payment_id
    WHERE payment_entries.payment_id = excluded.payment_id
    RETURNING payment_id
),
entry AS (
    INSERT INTO payment_entries (client_id, provider, kind, reference, payment_id, amount_minor, at, key_id)
    SELECT client_id, provider, :kind::text, :reference::text, id, disputed_minor, at, :key_id::uuid
    FROM payment WHERE EXISTS (SELECT FROM dispute)
    ON CONFLICT DO NOTHING
    RETURNING payment_id
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, key_id)
    SELECT order_id, client_id, 'payment.disputed', at,
        json_build_object('payment_id', id, 'provider', provider, 'reference', reference,
            'amount_minor', amount_minor, 'currency', currency, 'dispute', :kind::text,
            'dispute_reference', :reference::text, 'dispute_amount_minor', disputed_minor),
        :key_id::uuid
    FROM payment WHERE EXISTS (SELECT FROM entry)
)
SELECT payment_id FROM entry;
