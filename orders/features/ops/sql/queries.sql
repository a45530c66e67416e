-- What the operators' page reads: a bounded number of rows. The columns of an order are those that it shows in lists. A
-- time is compared with one before all, so that planners seek in its index instead of scanning all of it.

-- name: count_unpaid
-- How many orders are unpaid, up to a number.
-- :most    bigint
-- returns  count
SELECT count(*) FROM (
    SELECT FROM unpaid_orders WHERE expires_at > timestamptz '1970-01-01 UTC' LIMIT :most::bigint
) AS counted;

-- name: list_overdue
-- Orders that are overdue and spared by nothing, up to a number, and for how many milliseconds.
-- :most    bigint
-- returns  order_id, ms
SELECT order_id,
    (extract(epoch FROM statement_timestamp() - greatest(expires_at, kept_until)) * 1000)::bigint AS ms
FROM unpaid_orders
WHERE expires_at > timestamptz '1970-01-01 UTC'
  AND expires_at <= statement_timestamp()
  AND coalesce(kept_until <= statement_timestamp(), true)
  AND NOT EXISTS (SELECT FROM stops WHERE client_id IS NULL)
  AND client_id <> ALL (ARRAY(SELECT client_id FROM stops WHERE client_id IS NOT NULL))
LIMIT :most::bigint;

-- name: list_next
-- The unpaid orders that expire next, overdue ones first. One that is being paid waits for that.
-- :most    bigint
-- returns  id, client, client_reference, status, total_minor, currency, expires_at, expires_in_ms, frozen
WITH page AS (
    SELECT order_id, client_id, expires_at, kept_until FROM unpaid_orders
    WHERE expires_at > timestamptz '1970-01-01 UTC'
    ORDER BY expires_at, order_id LIMIT :most::bigint
)
SELECT id, (SELECT name FROM api_clients WHERE api_clients.id = orders.client_id) AS client, client_reference,
    'unpaid' AS status, total_minor, currency, expires_at,
    (extract(epoch FROM greatest(expires_at, kept_until) - statement_timestamp()) * 1000)::bigint AS expires_in_ms,
    EXISTS (SELECT FROM stops WHERE client_id IS NULL)
        OR orders.client_id = ANY (ARRAY(SELECT client_id FROM stops WHERE client_id IS NOT NULL)) AS frozen
FROM orders JOIN page ON order_id = id
WHERE id = ANY (ARRAY(SELECT order_id FROM page))
ORDER BY expires_at, id;

-- name: list_latest
-- The latest orders to expire in the last day, and how late each was cancelled. Only clients who placed one of the 500
-- newest orders are searched: an index of all cancellations by time would make expiring 4% slower.
-- :most    bigint
-- returns  id, client, client_reference, status, total_minor, currency, expires_at, late_ms, ago_ms
WITH clients AS MATERIALIZED (
    SELECT DISTINCT client_id AS id FROM (
        SELECT client_id FROM orders WHERE id > uuid '00000000-0000-0000-0000-000000000000' ORDER BY id DESC LIMIT 500
    ) AS newest
),
page AS MATERIALIZED (
    SELECT order_id, expires_at, at FROM clients CROSS JOIN LATERAL (
        SELECT order_id, expires_at, at, key_id, data FROM order_events
        WHERE type = 'order.cancelled'
          AND client_id BETWEEN clients.id AND clients.id  -- see list_newest.sql
          AND (client_id, expires_at) <= (clients.id, statement_timestamp())  -- not those whose deadline is to come
        ORDER BY client_id DESC, expires_at DESC, order_id DESC LIMIT 4 * :most::bigint
    ) AS ended
    WHERE key_id IS NULL AND data ->> 'reason' = 'expired' AND at > statement_timestamp() - interval '1 day'
    ORDER BY at DESC LIMIT :most::bigint
)
SELECT id, (SELECT name FROM api_clients WHERE api_clients.id = orders.client_id) AS client, client_reference,
    'cancelled' AS status, total_minor, currency, expires_at,
    (extract(epoch FROM at - expires_at) * 1000)::bigint AS late_ms,
    (extract(epoch FROM statement_timestamp() - at) * 1000)::bigint AS ago_ms
FROM orders JOIN page ON order_id = id
WHERE id = ANY (ARRAY(SELECT order_id FROM page))
ORDER BY at DESC;

-- name: find_by_reference
-- Some orders with a reference, of whichever clients, newest first.
-- :reference  text
-- :most       bigint
-- returns     id, client, client_reference, status, total_minor, currency, expires_at
WITH page AS (                                      -- each from the index of references, in its order
    (SELECT order_id, expires_at, 'unpaid' AS status FROM unpaid_orders
    WHERE client_reference = :reference::text AND client_reference IS NOT NULL
    ORDER BY client_reference DESC, client_id DESC, order_id DESC LIMIT :most::bigint)
    UNION ALL
    (SELECT order_id, expires_at, substr(type, 7) FROM order_events
    WHERE client_reference = :reference::text AND client_reference IS NOT NULL
    ORDER BY client_reference DESC, client_id DESC, type DESC, order_id DESC LIMIT :most::bigint)
)
SELECT id, (SELECT name FROM api_clients WHERE api_clients.id = orders.client_id) AS client, client_reference, status,
    total_minor, currency, expires_at
FROM orders JOIN page ON order_id = id
WHERE id = ANY (ARRAY(SELECT order_id FROM page))
ORDER BY id DESC LIMIT :most::bigint;

-- name: list_refunds_due
-- All clients' payments that have to be refunded, oldest first.
-- :most    bigint
-- returns  id, order_id, client, provider, reference, amount_minor, currency, reason, created_at, due_for_ms
SELECT id, order_id, (SELECT name FROM api_clients WHERE api_clients.id = payments.client_id) AS client, provider,
    reference, amount_minor - refunded_minor AS amount_minor, currency, reason, created_at,
    (extract(epoch FROM statement_timestamp() - created_at) * 1000)::bigint AS due_for_ms
FROM payments
WHERE status = 'refund_due'
  AND created_at > timestamptz '1970-01-01 UTC'
ORDER BY created_at, id LIMIT :most::bigint;

-- name: get_payer
-- The client that a payment belongs to.
-- :id      uuid
-- returns  client_id
SELECT client_id FROM payments WHERE id = :id::uuid;
