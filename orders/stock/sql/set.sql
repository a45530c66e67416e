-- Set a SKU's stock and price, or what is given of them and its timeout, if it is as expected; and record by how much
-- that changes what is on hand. One that is retired is sold again if its stock is set.
--
-- :sku              text
-- :on_hand          integer  null: it stays as it is, as do price and currency
-- :price_minor      bigint
-- :currency         text
-- :timeout_seconds  integer  null: the service's default; 0: it stays as it is
-- :versions         text[]   of which it must have one, as `StockItem.version` writes them; null: any
-- :may_repeat       boolean  whether it need not have one if all is set as it is
-- :may_create       boolean
-- :client_id        uuid     or null
-- :key_id           uuid     of the API key, or null
-- returns           is_after, sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds, refusal
--
-- Two rows: the SKU as it was found, with why it is not set; and as it was written. No row if there is no such SKU
-- and it may not be created, or if another request is creating it at this moment.
--
-- It decides by the row that it has locked.
WITH found AS (
    SELECT sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds
    FROM stock_items WHERE sku = :sku::text
    FOR NO KEY UPDATE
),
wanted AS (                                         -- a row, also for a SKU that is new
    SELECT coalesce(:on_hand::integer, on_hand) AS on_hand,
        coalesce(:price_minor::bigint, price_minor) AS price_minor,
        coalesce(:currency::text, currency) AS currency,
        CASE WHEN :on_hand::integer IS NULL THEN retired_at END AS retired_at,
        CASE WHEN :timeout_seconds::integer = 0 THEN timeout_seconds ELSE :timeout_seconds::integer END AS timeout_seconds
    FROM (SELECT) AS one LEFT JOIN found ON true
),
judged AS (
    SELECT found.*, CASE
        WHEN on_hand || '-' || price_minor || '-' || currency || coalesce('-' || timeout_seconds || 's', '')
                || CASE WHEN retired_at IS NULL THEN '' ELSE '-retired' END <> ALL (:versions::text[])
            AND NOT (:may_repeat::boolean AND (on_hand, price_minor, currency::text, retired_at, timeout_seconds)
                IS NOT DISTINCT FROM (SELECT wanted FROM wanted)) THEN 'version'
        WHEN reserved > :on_hand::integer THEN 'reserved' END AS refusal
    FROM found
),
written AS (
    INSERT INTO stock_items (sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds)
    SELECT :sku::text, on_hand, 0, price_minor, currency, retired_at, timeout_seconds
    FROM wanted
    WHERE CASE WHEN EXISTS (SELECT FROM judged) THEN (SELECT refusal IS NULL FROM judged) ELSE :may_create::boolean END
    ON CONFLICT (sku) DO UPDATE SET on_hand = excluded.on_hand, price_minor = excluded.price_minor,
        currency = excluded.currency, retired_at = excluded.retired_at, timeout_seconds = excluded.timeout_seconds
    WHERE EXISTS (SELECT FROM found)                -- a row that was locked, not one that another request is creating
    RETURNING sku, on_hand, reserved, price_minor, currency, retired_at, timeout_seconds
),
noted AS (
    INSERT INTO stock_adjustments (sku, client_id, delta, reason, on_hand, at, key_id)
    SELECT sku, :client_id::uuid, delta, 'set', on_hand, date_trunc('milliseconds', clock_timestamp()), :key_id::uuid
    FROM (SELECT *, on_hand - coalesce((SELECT on_hand FROM found), 0) AS delta FROM written) AS changed
    WHERE delta <> 0
)
SELECT false AS is_after, * FROM judged UNION ALL SELECT true, *, NULL FROM written;
