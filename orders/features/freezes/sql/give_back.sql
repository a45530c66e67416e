-- Give some orders the time back that a freeze took: all that it stopped and that were placed before its end expire so
-- many seconds after that, or later. Once there is no such order any more, not even a locked one, the freeze is over.
--
-- :id         uuid
-- :most       integer  orders
-- :kept_ms    bigint   for how long payments under way may keep an order beyond its deadline
-- returns     kind, id, client_id, ms
--
-- Rows, by kind:
--   extended  an order; ms: until it expires
--   over      the freeze, if this statement ended it
--   left      the freeze, if it is still in force; ms: until it ends. 0 or less: locked orders are left, or another
--             statement is at it
--
-- A freeze is in force until all is given back: nobody is cancelled between its end and then.
WITH thawing AS (
    SELECT id, client_id, reason, opened_by, ends_at + give_back_seconds * interval '1 second' AS deadline,
        -- The least UUIDv7 of the millisecond after its end.
        (lpad(to_hex((extract(epoch FROM ends_at) * 1000)::bigint + 1), 12, '0') || repeat('0', 20))::uuid AS next_id
    FROM freezes
    WHERE id = :id::uuid
      AND CASE WHEN given_back_at IS NULL THEN true ELSE false END  -- hidden from the index: the id is looked up
      AND ends_at <= statement_timestamp()
    FOR NO KEY UPDATE SKIP LOCKED
),
found AS (                                          -- with values of a single row, for which an index is searched
    SELECT order_id FROM unpaid_orders
    WHERE expires_at < (SELECT deadline FROM thawing)
      AND ((SELECT client_id FROM thawing) IS NULL OR client_id = (SELECT client_id FROM thawing))
      AND order_id < (SELECT next_id FROM thawing)
    ORDER BY expires_at, order_id LIMIT :most::integer
),
locked AS (
    SELECT order_id, expires_at FROM unpaid_orders
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM found))
      AND CASE WHEN expires_at < (SELECT deadline FROM thawing)
          THEN true ELSE false END                  -- hidden from the index of deadlines: the ids are looked up
    ORDER BY order_id
    FOR UPDATE SKIP LOCKED
),
extended AS (
    UPDATE unpaid_orders SET expires_at = (SELECT deadline FROM thawing), version = version + 1,
        -- Later, or as it was: an attempt that was opened after the freeze's end may end after this deadline's bound.
        kept_until = CASE WHEN kept_until IS NOT NULL THEN greatest(kept_until,
            (SELECT deadline FROM thawing) + :kept_ms::bigint * interval '1 millisecond') END
    WHERE order_id = ANY (ARRAY(SELECT order_id FROM locked))
    RETURNING order_id, client_id, expires_at, date_trunc('milliseconds', clock_timestamp()) AS at
),
events AS (
    INSERT INTO order_events (order_id, client_id, type, at, data)
    SELECT extended.order_id, extended.client_id, 'order.extended', at, json_build_object(
            'previous_expires_at', to_char(locked.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'expires_at', to_char(extended.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'reason', 'freeze', 'freeze_id', thawing.id, 'note', thawing.reason, 'by', thawing.opened_by)
    FROM thawing CROSS JOIN extended JOIN locked USING (order_id)
),
counted AS (
    UPDATE freezes SET given_back = given_back + (SELECT count(*) FROM extended),
        given_back_at = CASE WHEN NOT EXISTS (SELECT FROM found) THEN date_trunc('milliseconds', clock_timestamp()) END
    WHERE id = (SELECT id FROM thawing)
    RETURNING id, given_back_at
),
over AS (
    DELETE FROM stops WHERE id = (SELECT id FROM counted WHERE given_back_at IS NOT NULL)
    RETURNING id
)
SELECT 'extended' AS kind, order_id AS id, client_id, (extract(epoch FROM expires_at - at) * 1000)::bigint AS ms
FROM extended
UNION ALL
SELECT 'over', id, NULL, NULL FROM over
UNION ALL
SELECT 'left', id, NULL, (extract(epoch FROM ends_at - date_trunc('milliseconds', statement_timestamp())) * 1000)::bigint
FROM freezes
WHERE id = :id::uuid
  AND CASE WHEN given_back_at IS NULL THEN true ELSE false END
  AND NOT EXISTS (SELECT FROM over);
