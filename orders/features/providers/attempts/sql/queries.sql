-- Payment attempts. An attempt is locked before its order.

-- name: get_named
-- The attempt that a client's provider knows by this reference.
-- :client_id  uuid
-- :provider   text
-- :reference  text
-- returns     id, order_id, provider, reference, opened_at, ends_at, settled_at, outcome
SELECT id, order_id, provider, reference, opened_at, ends_at, settled_at, outcome
FROM payment_attempts
WHERE client_id = :client_id::uuid AND provider = :provider::text AND reference = :reference::text;

-- name: lock_named
-- The same, locked.
-- :client_id  uuid
-- :provider   text
-- :reference  text
-- returns     id, order_id, settled_at
SELECT id, order_id, settled_at FROM payment_attempts
WHERE client_id = :client_id::uuid AND provider = :provider::text AND reference = :reference::text
FOR UPDATE;

-- name: add_failed
-- Insert an attempt that has failed before it was known, so that it is not opened later.
-- :id         uuid
-- :order_id   uuid
-- :client_id  uuid
-- :provider   text
-- :reference  text
-- returns     id
INSERT INTO payment_attempts
    (id, order_id, client_id, provider, reference, opened_at, ends_at, settled_at, outcome, asks)
SELECT :id::uuid, id, client_id, :provider::text, :reference::text, date_trunc('milliseconds', statement_timestamp()),
    date_trunc('milliseconds', statement_timestamp()), date_trunc('milliseconds', statement_timestamp()), 'failed', false
FROM orders
WHERE id = :order_id::uuid AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END
FOR KEY SHARE                                       -- so that it is not deleted meanwhile
ON CONFLICT DO NOTHING
RETURNING id;

-- name: has_order
-- Whether a client has this order.
-- :order_id   uuid
-- :client_id  uuid
-- returns     exists
SELECT EXISTS (
    SELECT FROM orders WHERE id = :order_id::uuid AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END
);

-- name: list_of_order
-- An order's attempts, oldest first, from a page's end on.
-- :order_id   uuid
-- :last_at    timestamptz
-- :last_id    uuid
-- :page_size  bigint
-- returns     id, order_id, provider, reference, opened_at, ends_at, settled_at, outcome
SELECT id, order_id, provider, reference, opened_at, ends_at, settled_at, outcome
FROM payment_attempts
WHERE order_id = :order_id::uuid AND (opened_at, id) > (:last_at::timestamptz, :last_id::uuid)
ORDER BY opened_at, id LIMIT :page_size::bigint;

-- name: get_open
-- Those of these attempts that are not settled, with their order's total. Of an order that has ended, a provider is
-- asked for as long as of one that is unpaid.
-- :ids        uuid[]
-- :most_ms    bigint       for how long attempts may keep an order past its deadline
-- :not_after  timestamptz  the latest that the clock can show, unless it jumped; null: unknown
-- returns     id, order_id, client_id, provider, reference, amount_minor, currency, ends_in_ms, asks, is_over
WITH open AS (
    SELECT *, least(statement_timestamp(), :not_after::timestamptz) AS now FROM payment_attempts
    WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))
      AND CASE WHEN settled_at IS NULL THEN true ELSE false END  -- hidden from the index of open ones
)
SELECT open.id, order_id, client_id, provider, reference, total_minor AS amount_minor, currency,
    ceil(extract(epoch FROM ends_at - now) * 1000)::bigint AS ends_in_ms,
    asks AND NOT EXISTS (
        SELECT FROM payments
        WHERE payments.client_id = open.client_id AND payments.provider = open.provider
          AND payments.reference = open.reference AND payments.order_id = open.order_id
    ) AS asks,
    coalesce(
        (SELECT CASE WHEN EXISTS (SELECT FROM stops WHERE coalesce(client_id = open.client_id, true))
            THEN false ELSE kept_until <= now END FROM unpaid_orders WHERE order_id = open.order_id),
        ends_at + :most_ms::bigint * interval '1 millisecond' <= now
    ) AS is_over
FROM open
-- OFFSET 0, so that they are looked up and not merged.
CROSS JOIN LATERAL (SELECT total_minor, currency FROM orders WHERE id = open.order_id OFFSET 0) AS total;

-- name: lock_orders
-- Lock the unpaid orders that some attempts are about, in the order of all locks.
-- :ids     uuid[]
-- returns  order_id
SELECT order_id FROM unpaid_orders
WHERE order_id = ANY (ARRAY(
    SELECT order_id FROM payment_attempts WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))
))
ORDER BY order_id
FOR UPDATE;

-- name: list_open
-- An order's attempts that are not settled, oldest first.
-- :order_id  uuid
-- returns    id, provider, reference
SELECT id, provider, reference
FROM payment_attempts
WHERE order_id = :order_id::uuid AND settled_at IS NULL
ORDER BY opened_at, id;
