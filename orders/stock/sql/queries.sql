-- name: retire
-- Retire a SKU, unless it is.
-- :sku  text
UPDATE stock_items SET retired_at = date_trunc('milliseconds', clock_timestamp())
WHERE sku = :sku::text
  AND CASE WHEN retired_at IS NULL THEN true ELSE false END;  -- hidden from the index of the list

-- name: get
-- One SKU.
-- :sku     text
-- returns  sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds
SELECT sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds
FROM stock_items WHERE sku = :sku::text;

-- name: list
-- SKUs that are sold, from a page's end on: in byte order, whatever the database's locale.
-- :after      text
-- :page_size  integer
-- returns     sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds
SELECT sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds
FROM stock_items
WHERE sku COLLATE "C" > :after::text AND retired_at IS NULL
ORDER BY sku COLLATE "C"
LIMIT :page_size::integer;

-- name: get_adjustment
-- The adjustment that was made with a client's key.
-- :client_id  uuid
-- :key        text
-- returns     id, sku, client, delta, reason, on_hand, at, key_id
SELECT id, sku, (SELECT name FROM api_clients WHERE api_clients.id = client_id) AS client, delta, reason, on_hand, at,
    key_id
FROM stock_adjustments
WHERE client_id = :client_id::uuid AND idempotency_key = :key::text;

-- name: list_adjustments
-- A SKU's adjustments, newest first, from a page's end on.
-- :sku        text
-- :before_id  bigint
-- :page_size  integer
-- returns     id, sku, client, delta, reason, on_hand, at, key_id
SELECT id, sku, (SELECT name FROM api_clients WHERE api_clients.id = client_id) AS client, delta, reason, on_hand, at,
    key_id
FROM stock_adjustments
WHERE sku = :sku::text AND id < :before_id::bigint
ORDER BY id DESC
LIMIT :page_size::integer;
