-- Place an order and reserve its stock, if all of that can be had and its key is new.
--
-- :client_id         uuid
-- :key               text     the idempotency key
-- :fingerprint       text     of the request
-- :skus              text[]
-- :quantities        integer[]  of each
-- :timeout_ms        bigint   how long it may stay unpaid
-- :min_ms            bigint   the bounds of its SKUs' own timeouts, of which the shortest counts instead; null: the
-- :max_ms            bigint   request asked for a timeout, and they do not
-- :random            text     the end of its id, in hex, after the time: see orders/db/ids.py
-- :client_reference  text
-- :metadata          json
-- :origin            text
-- :key_id            uuid     of the API key that it is done with, or null
-- returns            sku, price_minor, currency, spare, refusal, total, id, created_at, expires_at, client
--
-- A row for each SKU that was found, with what is left of it then, and what is so of all. Without an id nothing was
-- changed: for the refusal, or because another request has just used the key. No rows: the key is known, or no SKU.
--
-- What costs nothing is paid at once, and its stock sold. Nobody sees a new order yet, so stock is locked first; a
-- request that is repeated while the first one runs finds the order by its key without waiting for a payment.
WITH client AS MATERIALIZED (
    SELECT id, name FROM api_clients WHERE id = :client_id::uuid
),
lines AS (
    SELECT stock_items.sku, price_minor, currency, quantity, on_hand - reserved - quantity AS spare,
        quantity::float8 * price_minor AS amount,   -- exact up to 2^53, and does not overflow beyond it
        CASE WHEN :max_ms::bigint IS NULL OR timeout_seconds IS NULL THEN :timeout_ms::bigint
            ELSE greatest(least(timeout_seconds::bigint * 1000, :max_ms::bigint), :min_ms::bigint) END AS timeout_ms
    FROM stock_items
    JOIN unnest(:skus::text[], :quantities::integer[]) AS wanted (sku, quantity) ON wanted.sku = stock_items.sku
    WHERE stock_items.sku = ANY (:skus::text[])
      AND CASE WHEN retired_at IS NULL THEN true ELSE false END  -- hidden from the index of the list
      AND NOT EXISTS (SELECT FROM orders WHERE client_id = :client_id::uuid AND idempotency_key = :key::text)
    ORDER BY stock_items.sku COLLATE "C"
    FOR NO KEY UPDATE OF stock_items
),
basket AS (
    SELECT min(currency) AS currency, sum(amount) AS total, sum(quantity) AS pieces, min(timeout_ms) AS timeout_ms,
        CASE WHEN count(*) < cardinality(:skus::text[]) OR min(spare) < 0 THEN 'unavailable'
            WHEN min(currency) <> max(currency) THEN 'mixed_currencies'
            WHEN sum(amount) > 9007199254740991 THEN 'total_too_large' END AS refusal,
        date_trunc('milliseconds', clock_timestamp()) AS at  -- when the stock is locked, however long that took
    FROM lines
),
placed AS (
    INSERT INTO orders (id, client_id, currency, total_minor, created_at, timeout_ms, idempotency_key, fingerprint,
        client_reference, metadata, origin)
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || :random::text)::uuid, client.id,
        currency, total::bigint, at, timeout_ms, :key::text, :fingerprint::text,
        :client_reference::text, :metadata::json, :origin::text
    FROM basket CROSS JOIN client WHERE refusal IS NULL
    ON CONFLICT DO NOTHING
    RETURNING id, client_id, created_at, created_at + timeout_ms * interval '1 millisecond' AS expires_at,
        client_reference, total_minor = 0 AS is_free
),
unpaid AS (
    INSERT INTO unpaid_orders (order_id, client_id, expires_at, pieces, client_reference)
    SELECT id, client_id, expires_at, (SELECT pieces FROM basket), client_reference FROM placed WHERE NOT is_free
),
items AS (
    INSERT INTO order_items (order_id, sku, quantity, unit_price_minor)
    SELECT id, sku, quantity, price_minor FROM lines CROSS JOIN placed
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data, key_id, expires_at, version, client_reference)
    SELECT id, client_id, 'order.created', created_at, '{}'::json, :key_id::uuid, NULL::timestamptz, NULL::int, NULL
    FROM placed
    UNION ALL
    SELECT id, client_id, 'order.paid', created_at, '{}', :key_id::uuid, expires_at, 1, client_reference
    FROM placed WHERE is_free
),
stock AS (                                          -- always conflicts: the rows are locked already
    INSERT INTO stock_items (sku, on_hand, reserved, price_minor, currency)
    SELECT sku, quantity, CASE WHEN is_free THEN 0 ELSE quantity END, 0, '' FROM lines CROSS JOIN placed
    ON CONFLICT (sku) DO UPDATE SET on_hand = stock_items.on_hand - (excluded.on_hand - excluded.reserved),
        reserved = stock_items.reserved + excluded.reserved
)
SELECT lines.sku, price_minor, lines.currency, spare, refusal, basket.total, placed.id, created_at, expires_at,
    (SELECT name FROM client) AS client
FROM lines CROSS JOIN basket LEFT JOIN placed ON true;
