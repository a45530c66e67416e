-- What the doctor and metrics read. All of it only reads, and only a bounded part of the tables.

-- name: get_server
-- The server's version, whether it takes writes, and its clock in seconds since the epoch.
-- returns  version, number, read_only, clock
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
    current_setting('transaction_read_only') = 'on' AS read_only, extract(epoch FROM clock_timestamp())::float8 AS clock;

-- name: list_wrong_settings
-- Which of this session's settings are not as wanted, and the statements that would give its role others.
-- :wanted  json  values by the names of settings
-- returns  name, value, remedy
SELECT wanted.name, wanted.value, format('ALTER ROLE %I IN DATABASE %I SET %s = %L;', current_user,
    current_database(), wanted.name, wanted.value) AS remedy
FROM json_each_text(:wanted::json) AS wanted (name, value)
JOIN pg_settings ON lower(pg_settings.name) = wanted.name
WHERE split_part(setting, ',', 1) <> wanted.value
ORDER BY 1;

-- name: list_indexes
-- The indexes that work, among those that the session sees.
-- returns  relname
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE pg_table_is_visible(c.oid) AND i.indisvalid AND i.indisready;

-- name: list_wrong_stock
-- SKUs whose reserved stock is not what unpaid orders reserve; if not all unpaid orders are read, those that reserve less.
-- :most_unpaid  bigint
-- :most_skus    bigint
-- :most         bigint
-- returns       sku, on_hand, reserved, by_orders
WITH unpaid AS (
    SELECT order_id FROM unpaid_orders WHERE expires_at > timestamptz '1970-01-01 UTC'
    ORDER BY expires_at, order_id LIMIT :most_unpaid::bigint
),
by_orders AS (
    SELECT sku, sum(quantity) AS quantity FROM order_items
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM unpaid)) GROUP BY sku
),
shelf AS (
    SELECT sku, on_hand, reserved FROM stock_items WHERE sku > '' ORDER BY sku LIMIT :most_skus::bigint
)
SELECT sku, on_hand, reserved, coalesce(quantity, 0) AS by_orders
FROM shelf LEFT JOIN by_orders USING (sku)
WHERE reserved < coalesce(quantity, 0)
   OR reserved > coalesce(quantity, 0) AND (SELECT count(*) FROM unpaid) < :most_unpaid::bigint
   OR on_hand < reserved
ORDER BY sku LIMIT :most::bigint;
