-- Have an open freeze end so many milliseconds from now, earlier or later. It stays in force until it has given back.
--
-- :id         uuid
-- :ms         bigint  0: now
-- :thawed_by  text    who ends it; null: nobody, it is prolonged
-- returns     id
WITH moved AS (
    UPDATE freezes SET thawed_by = :thawed_by::text,
        ends_at = date_trunc('milliseconds', statement_timestamp()) + :ms::bigint * interval '1 millisecond'
    WHERE id = :id::uuid
      AND CASE WHEN given_back_at IS NULL THEN true ELSE false END  -- hidden from the index: the id is looked up
      AND ends_at > statement_timestamp()
    RETURNING id, ends_at
)
UPDATE stops SET until = moved.ends_at FROM moved WHERE stops.id = moved.id
RETURNING stops.id;
