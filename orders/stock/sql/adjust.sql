-- Add to what is on hand of a SKU, or remove from it, if that leaves enough for what orders reserve, and if its key is
-- new.
--
-- :sku        text
-- :client_id  uuid
-- :key        text
-- :key_id     uuid     of the API key, or null
-- :delta      integer
-- :reason     text
-- returns     was_on_hand, was_reserved, id, sku, client, delta, reason, on_hand, at, key_id
--
-- The SKU as it was found, with the adjustment or with nulls. No row if there is no such SKU, or if the key is known.
--
-- It decides by the row that it has locked.
WITH found AS (
    SELECT sku, on_hand, reserved FROM stock_items
    WHERE sku = :sku::text
      AND NOT EXISTS (SELECT FROM stock_adjustments WHERE client_id = :client_id::uuid AND idempotency_key = :key::text)
    FOR NO KEY UPDATE
),
adjusted AS (
    INSERT INTO stock_adjustments (sku, client_id, delta, reason, on_hand, at, idempotency_key, key_id)
    SELECT sku, :client_id::uuid, :delta::integer, :reason::text, on_hand + :delta::integer,
        date_trunc('milliseconds', clock_timestamp()), :key::text, :key_id::uuid
    FROM found
    WHERE on_hand::bigint + :delta::integer BETWEEN reserved AND 2147483647  -- as bigint no sum overflows
    ON CONFLICT DO NOTHING
    RETURNING *
),
stock AS (                                          -- in effect an UPDATE, of a row read under its lock: it exists
    INSERT INTO stock_items (sku, on_hand, price_minor, currency) SELECT sku, 0, 0, '' FROM adjusted
    ON CONFLICT (sku) DO UPDATE SET on_hand = stock_items.on_hand + :delta::integer
)
SELECT found.on_hand AS was_on_hand, found.reserved AS was_reserved,
    adjusted.id, adjusted.sku, (SELECT name FROM api_clients WHERE api_clients.id = adjusted.client_id) AS client,
    adjusted.delta, adjusted.reason, adjusted.on_hand, adjusted.at, adjusted.key_id
FROM found LEFT JOIN adjusted ON true;
