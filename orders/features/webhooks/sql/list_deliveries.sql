-- A subscription's deliveries between two times, newest first.
--
-- :subscription_id  uuid
-- :status           text         null: all
-- :after_at         timestamptz
-- :before_at        timestamptz
-- :before_id        uuid         among those at that time
-- :page_size        bigint
-- returns           id, subscription_id, order_id, type, status, attempts, created_at, next_attempt_at,
--                   delivered_at, last_attempt_at, last_status, last_error, last_body
--
-- Those of each status are read from the index in this order. The bounds are comparisons of rows, which only that index
-- is for: with plain equalities a planner would also consider the index of those that are pending, and sort all of them.
SELECT found.*
FROM unnest(string_to_array(coalesce(:status::text, 'pending delivered dead'), ' ')) AS one (status)
CROSS JOIN LATERAL (
    SELECT id, subscription_id, order_id, type, status, attempts, created_at,
        CASE WHEN status = 'pending' THEN due_at END AS next_attempt_at,
        delivered_at, last_attempt_at, last_status, last_error, last_body
    FROM webhook_deliveries
    WHERE (subscription_id, status, created_at) > (:subscription_id::uuid, one.status, :after_at::timestamptz)
      AND (subscription_id, status, created_at, id)
          < (:subscription_id::uuid, one.status, :before_at::timestamptz, :before_id::uuid)
    ORDER BY subscription_id DESC, status DESC, created_at DESC, id DESC
    LIMIT :page_size
) AS found
ORDER BY created_at DESC, id DESC
LIMIT :page_size;
