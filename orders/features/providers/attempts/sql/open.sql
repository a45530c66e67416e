-- Open an attempt of a client's own order, and have it keep the order.
--
-- It ends in time for its provider to be asked, if that can be: a tenth of the bound is left for that. An attempt for
-- an order that has already ended ends immediately, so that its provider is asked to close it.
--
-- :id         uuid
-- :order_id   uuid
-- :client_id  uuid
-- :provider   text
-- :reference  text
-- :for_ms     bigint   how long it may last
-- :most_ms    bigint   for how long attempts may keep an order past its deadline
-- :most_open  bigint   how many attempts of an order may be open
-- returns     id, order_id, provider, reference, opened_at, ends_at, settled_at, outcome, is_elsewhere,
--             is_unpaid, ending, is_full, ms
--
-- No row: there is no such order. Nulls: nothing was opened; whether the payment of this reference is another order's,
-- whether the order is unpaid, how it ended, and whether it has too many attempts. An order that ended after this
-- statement had begun is neither unpaid nor has ended.
WITH own AS (
    SELECT order_id, expires_at FROM unpaid_orders
    WHERE order_id = :order_id::uuid
      AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END  -- hidden from the index of clients
    FOR UPDATE
),
found AS MATERIALIZED (                             -- when the order is locked
    SELECT orders.id AS order_id, date_trunc('milliseconds', clock_timestamp()) AS moment,
        own.order_id IS NOT NULL AS is_unpaid,
        own.expires_at,
        EXISTS (
            SELECT FROM provider_endpoints
            WHERE client_id = :client_id::uuid AND provider = :provider::text AND revoked_at IS NULL
              AND close_url IS NOT NULL
        ) AS asks,
        EXISTS (
            SELECT FROM payments
            WHERE client_id = :client_id::uuid AND provider = :provider::text AND reference = :reference::text
              AND order_id <> :order_id::uuid
        ) AS is_elsewhere,
        (SELECT count(*) FROM (
            SELECT FROM payment_attempts
            WHERE order_id = :order_id::uuid AND settled_at IS NULL LIMIT :most_open::bigint
        ) AS open) >= :most_open::bigint AS is_full,
        (SELECT type FROM order_events WHERE order_id = :order_id::uuid AND place = 0) AS ending
    FROM orders LEFT JOIN own ON true
    WHERE orders.id = :order_id::uuid AND CASE WHEN orders.client_id = :client_id::uuid THEN true ELSE false END
    FOR KEY SHARE OF orders                         -- so that it is not deleted meanwhile
),
asked AS MATERIALIZED (                             -- a deadline that is stopped is never past
    SELECT *, :most_ms::bigint * interval '1 millisecond' + CASE
        WHEN EXISTS (SELECT FROM stops WHERE coalesce(client_id = :client_id::uuid, true))
        THEN greatest(expires_at, moment) ELSE expires_at END AS bound
    FROM found
),
opened AS (
    INSERT INTO payment_attempts (id, order_id, client_id, provider, reference, opened_at, ends_at, asks)
    SELECT :id::uuid, order_id, :client_id::uuid, :provider::text, :reference::text, moment,
        CASE WHEN is_unpaid
            THEN least(moment + :for_ms::bigint * interval '1 millisecond', greatest(moment,
                CASE WHEN asks THEN bound - :most_ms::bigint / 10 * interval '1 millisecond' ELSE bound END))
            ELSE moment END, asks
    FROM asked
    WHERE NOT is_elsewhere AND NOT is_full
      AND CASE WHEN is_unpaid THEN bound > moment ELSE asks AND ending IS NOT NULL END
    ON CONFLICT DO NOTHING
    RETURNING *
),
kept AS (                                           -- of the row as it is once it is locked; nulls do not count
    UPDATE unpaid_orders
    SET kept_until = greatest(kept_until, (SELECT CASE WHEN opened.asks THEN bound ELSE ends_at END
        FROM opened CROSS JOIN asked))
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM opened))
)
SELECT opened.id, opened.order_id, opened.provider, opened.reference, opened.opened_at, opened.ends_at,
    opened.settled_at, opened.outcome, asked.is_elsewhere, asked.is_unpaid, asked.ending,
    asked.is_full, (extract(epoch FROM opened.ends_at - asked.moment) * 1000)::bigint AS ms
FROM asked LEFT JOIN opened ON true;
