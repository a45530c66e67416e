-- Record a payment for a client's own order, and the order as paid if it is unpaid.
--
-- Money that is late, paid twice, or the wrong amount is recorded as due for a refund. No row: there is no such order.
-- A row of nulls: nothing was written, because the reference is known or `lost` is true.
--
-- :payment_id    uuid         of the new payment
-- :order_id      uuid
-- :client_id     uuid
-- :provider      text
-- :reference     text
-- :amount_minor  bigint
-- :currency      text
-- :paid_at       timestamptz  by the provider's clock, or null
-- :otherwise     text         the reason if the order ended after this statement had begun: 'lost' writes nothing, so that
--                             it can be run again; any other is why a refund is due
-- :key_id        uuid         of the API key that it is done with, or null
-- returns        a payment, lost, was_kept
--
-- An unpaid order ends only when its row in `unpaid_orders` is deleted: here as paid, in expire.sql and cancel.sql as
-- cancelled. A row is deleted once, so no order is both. `open` waits for the row's lock; if whoever held it deleted the
-- row, `open` is empty and the money is due back. The reason is in the terminal event, which only statements that begin
-- later can see. If the order has ended, `orders` is locked instead, so that its events are in commit order.
WITH own AS (
    SELECT id AS order_id, total_minor, currency FROM orders
    WHERE id = :order_id::uuid
      AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END  -- hidden from the index of clients
),
open AS (
    SELECT order_id FROM unpaid_orders WHERE order_id = (SELECT order_id FROM own) FOR UPDATE
),
ended AS (
    SELECT id FROM orders WHERE id = (SELECT order_id FROM own) AND NOT EXISTS (SELECT FROM open) FOR NO KEY UPDATE
),
judged AS (
    SELECT order_id, date_trunc('milliseconds', clock_timestamp()) AS at,
        CASE
            WHEN EXISTS (SELECT FROM open) THEN
                CASE WHEN total_minor <> :amount_minor::bigint OR currency <> :currency::text THEN 'wrong_amount' END
            ELSE coalesce((
                SELECT CASE
                    WHEN type = 'order.paid' THEN 'already_paid'
                    WHEN data ->> 'reason' = 'expired' AND :paid_at::timestamptz <= expires_at THEN 'paid_in_time'
                    ELSE 'order_cancelled' END
                FROM order_events WHERE order_id = :order_id::uuid AND place = 0
            ), :otherwise::text)
        END AS reason
    FROM own WHERE EXISTS (SELECT FROM open) OR EXISTS (SELECT FROM ended)
),
payment AS (
    INSERT INTO payments (id, order_id, client_id, provider, reference, amount_minor, currency, status, reason,
        created_at, paid_at)
    SELECT :payment_id::uuid, order_id, :client_id::uuid, :provider::text, :reference::text, :amount_minor::bigint,
        :currency::text, CASE WHEN reason IS NULL THEN 'applied' ELSE 'refund_due' END, reason, at,
        :paid_at::timestamptz
    FROM judged WHERE reason IS DISTINCT FROM 'lost'
    ON CONFLICT DO NOTHING
    RETURNING *
),
paid AS (
    DELETE FROM unpaid_orders WHERE order_id = ANY (ARRAY(SELECT order_id FROM payment WHERE reason IS NULL))
    RETURNING order_id, expires_at, version, client_reference, kept_until
),
stock AS (                                          -- in effect an UPDATE, of rows read under their locks: all exist
    INSERT INTO stock_items (sku, on_hand, reserved, price_minor, currency)
    SELECT sku, quantity, quantity, 0, '' FROM order_items
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM paid)) ORDER BY sku COLLATE "C"
    ON CONFLICT (sku) DO UPDATE SET on_hand = stock_items.on_hand - excluded.on_hand,
        reserved = stock_items.reserved - excluded.reserved
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, key_id, expires_at, version, client_reference)
    SELECT payment.order_id, payment.client_id,
        CASE WHEN reason IS NULL THEN 'order.paid' ELSE 'payment.refund_due' END, created_at,
        json_strip_nulls(json_build_object('payment_id', id, 'provider', provider, 'reference', reference,
            'amount_minor', amount_minor, 'currency', currency, 'reason', reason)),
        :key_id::uuid, paid.expires_at, paid.version + 1, paid.client_reference
    FROM payment LEFT JOIN paid ON true
)
SELECT payment.id, payment.order_id, provider, reference, amount_minor, currency, status, payment.reason, created_at,
    refunded_minor, refunded_at, refund_reference, paid_at, judged.reason IS NOT DISTINCT FROM 'lost' AS lost,
    EXISTS (SELECT FROM paid WHERE kept_until IS NOT NULL) AS was_kept
FROM judged LEFT JOIN payment ON true;
