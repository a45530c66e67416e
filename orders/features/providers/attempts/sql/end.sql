-- End the open attempts of an order that has ended; after its deadline moved, shorten them to what still keeps it.
--
-- :order_id  uuid
-- :most_ms   bigint  for how long attempts may keep an order past its deadline: a tenth of it is left to ask providers
--
-- An attempt that somebody else has locked is waited for, since its end may be what another such statement makes it.
WITH bound AS MATERIALIZED (
    SELECT kept_until FROM unpaid_orders WHERE order_id = :order_id::uuid
)
UPDATE payment_attempts
SET ends_at = least(ends_at,
    coalesce((SELECT kept_until FROM bound), date_trunc('milliseconds', statement_timestamp())),
    CASE WHEN asks THEN (SELECT kept_until FROM bound) - :most_ms::bigint / 10 * interval '1 millisecond' END)
WHERE order_id = :order_id::uuid AND settled_at IS NULL;
