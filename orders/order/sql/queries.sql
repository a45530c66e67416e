-- Orders, payments and events, as they are read. The columns of an order, wherever one is returned, are the fields of
-- `orders.order.domain.Order`, and those of a payment the fields of `Payment`.

-- name: get_order
-- One order of one client, or of any.
-- :id         uuid
-- :client_id  uuid  null: of any
-- returns     an order
SELECT id, status, currency, total_minor, items, created_at, expires_at, paid_at, cancelled_at, cancel_reason, version,
    refunded_minor, client, client_reference, metadata FROM current_orders
WHERE id = :id::uuid AND client_id = coalesce(:client_id::uuid, client_id);

-- name: list_all
-- A page of all clients' orders, newest first.
-- :before_id  uuid    the last of the page before
-- :page_size  bigint
-- returns     an order
WITH page AS MATERIALIZED (SELECT id FROM orders WHERE id < :before_id::uuid ORDER BY id DESC LIMIT :page_size::bigint)
SELECT id, status, currency, total_minor, items, created_at, expires_at, paid_at, cancelled_at, cancel_reason, version,
    refunded_minor, client, client_reference, metadata FROM current_orders
WHERE id = ANY (ARRAY(SELECT id FROM page)) AND order_id = ANY (ARRAY(SELECT id FROM page))
ORDER BY id DESC;

-- name: get_placed_with_key
-- The order that a client placed with a key, as it was placed, and what tells its request from others.
-- :client_id  uuid
-- :key        text
-- returns     fingerprint, an order
SELECT fingerprint, id, status, currency, total_minor, items, created_at, expires_at, paid_at, cancelled_at,
    cancel_reason, version, refunded_minor, client, client_reference, metadata FROM placed_orders
WHERE client_id = :client_id::uuid AND idempotency_key = :key::text;

-- name: list_events
-- An order's events after a place in its sequence, oldest first. The data of the first are the order as it was placed.
-- :order_id   uuid
-- :after_id   bigint
-- :page_size  bigint
-- returns     id, type, at, data, key_id
SELECT id, type, at, data, key_id FROM shown_events
WHERE order_id = :order_id::uuid AND id > :after_id::bigint ORDER BY id LIMIT :page_size::bigint;

-- name: get_payment
-- One payment of one client.
-- :id         uuid
-- :client_id  uuid
-- returns     a payment
SELECT id, order_id, provider, reference, amount_minor, currency, status, reason, created_at, refunded_minor,
    refunded_at, refund_reference, paid_at FROM payments
WHERE id = :id::uuid AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END;  -- hidden from lists' index

-- name: find_payment
-- The payment that a client's provider knows by a reference.
-- :client_id  uuid
-- :provider   text
-- :reference  text
-- returns     a payment
SELECT id, order_id, provider, reference, amount_minor, currency, status, reason, created_at, refunded_minor,
    refunded_at, refund_reference, paid_at FROM payments
WHERE client_id = :client_id::uuid AND provider = :provider::text AND reference = :reference::text;

-- name: find_refund
-- The refund, failed or not, that the provider of a payment knows by a reference.
-- :client_id   uuid
-- :payment_id  uuid
-- :reference   text
-- returns      payment_id, amount_minor, failed_at
SELECT payment_id, amount_minor, failed_at FROM payment_entries
WHERE client_id = :client_id::uuid AND kind = 'refund' AND reference = :reference::text
  AND provider = (SELECT provider FROM payments WHERE id = :payment_id::uuid);

-- name: list_payments
-- A client's payments of one status, oldest first, after the last one of the page before.
-- :client_id  uuid
-- :status     text
-- :last_at    timestamptz
-- :last_id    uuid
-- :page_size  bigint
-- returns     a payment
SELECT id, order_id, provider, reference, amount_minor, currency, status, reason, created_at, refunded_minor,
    refunded_at, refund_reference, paid_at FROM payments
WHERE client_id = :client_id::uuid AND status = :status::text
  AND (created_at, id) > (:last_at::timestamptz, :last_id::uuid)
ORDER BY created_at, id LIMIT :page_size::bigint;

-- name: list_payments_of_order
-- An order's payments, oldest first, after the last one of the page before.
-- :order_id   uuid
-- :last_at    timestamptz
-- :last_id    uuid
-- :page_size  bigint
-- returns     a payment
SELECT id, order_id, provider, reference, amount_minor, currency, status, reason, created_at, refunded_minor,
    refunded_at, refund_reference, paid_at FROM payments
WHERE order_id = :order_id::uuid AND (created_at, id) > (:last_at::timestamptz, :last_id::uuid)
ORDER BY created_at, id LIMIT :page_size::bigint;

-- name: sum_refunds_due
-- What is due back in each currency, of the oldest payments up to a number, and how long the oldest has waited.
-- :most    bigint
-- returns  currency, payments, amount_minor, oldest_ms
SELECT currency, count(*) AS payments, sum(amount_minor)::bigint AS amount_minor,
    greatest((extract(epoch FROM statement_timestamp() - min(created_at)) * 1000)::bigint, 0) AS oldest_ms
FROM (
    SELECT currency, amount_minor - refunded_minor AS amount_minor, created_at FROM payments
    WHERE status = 'refund_due'
      AND created_at > timestamptz '1970-01-01 UTC'  -- any: so that the index of these is searched
    ORDER BY created_at, id LIMIT :most::bigint
) AS due
GROUP BY currency;
