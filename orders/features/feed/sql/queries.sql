-- A client's events, as they are read.

-- name: get_settled
-- The greatest id up to which every event is committed: see `orders.features.feed.service`.
-- returns  id
SELECT least(last_value, (
    SELECT min((classid::bigint & 65535) << 32 | objid::bigint) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1
      AND classid::bigint >> 16 = 3710  -- what announce.sql locks
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND last_value > 0                -- so that it is read first
)) AS id
FROM order_events_id_seq;

-- name: list_events
-- A client's events between two ids, in their sequence. The data of an order's first are the order as it was placed.
-- :client_id  uuid
-- :after_id   bigint
-- :settled    bigint
-- :page_size  bigint
-- returns     sequence, order_id, type, at, data, key_id
SELECT id AS sequence, order_id, type, at, data, key_id FROM shown_events
WHERE (client_id, id) > (:client_id::uuid, :after_id::bigint)
  AND (client_id, id) <= (:client_id::uuid, :settled::bigint)
ORDER BY client_id, id LIMIT :page_size::bigint;
