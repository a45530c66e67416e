-- Keep a message that waits for a person, or note what became of one that waited; delete two that settled long ago.
--
-- :id                 uuid
-- :endpoint_id        uuid
-- :client_id          uuid     the endpoint's
-- :provider           text     the endpoint's
-- :webhook_id         text
-- :body               bytea
-- :note               text
-- :waits              boolean  whether it is for a person to look at; of an unknown type, only the first one is
-- :unknown_type       text     or null
-- :order_id           uuid     that it names, or null
-- :payment_reference  text     that it names, or null
-- :kept_ms            bigint   how long those are kept that wait for nobody
-- returns             has_room
--
-- A message's body is there for as long as it waits. Nothing is inserted that would wait beside 10,000 of its endpoint.
WITH old AS (
    SELECT id FROM provider_messages
    WHERE status = 'settled' AND unknown_type IS NULL
      AND created_at < statement_timestamp() - :kept_ms::bigint * interval '1 millisecond'
      AND id <> :id::uuid
    ORDER BY created_at, id LIMIT 2
    FOR UPDATE SKIP LOCKED
),
pruned AS (
    DELETE FROM provider_messages WHERE id = ANY (ARRAY(SELECT id FROM old))
),
message AS (
    SELECT :waits::boolean AND NOT EXISTS (
        SELECT FROM provider_messages
        WHERE endpoint_id = :endpoint_id::uuid AND unknown_type = :unknown_type::text AND id <> :id::uuid) AS waits
),
room AS (
    SELECT waits, CASE WHEN NOT waits OR EXISTS (SELECT FROM provider_messages WHERE id = :id::uuid) THEN true
        ELSE NOT EXISTS (
            SELECT FROM provider_messages WHERE endpoint_id = :endpoint_id::uuid AND status = 'waiting' OFFSET 9999)
        END AS has_room
    FROM message
),
kept AS (
    INSERT INTO provider_messages
        (id, endpoint_id, webhook_id, body, created_at, status, note, unknown_type, order_id, payment_reference)
    SELECT :id::uuid, :endpoint_id::uuid, :webhook_id::text, CASE WHEN waits THEN :body::bytea END,
        date_trunc('milliseconds', statement_timestamp()), CASE WHEN waits THEN 'waiting' ELSE 'settled' END,
        :note::text, :unknown_type::text,
        coalesce(
            (SELECT id FROM orders
                WHERE id = :order_id::uuid AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END),
            (SELECT order_id FROM payments
                WHERE client_id = :client_id::uuid AND provider = :provider::text
                  AND reference = :payment_reference::text),
            (SELECT order_id FROM payment_attempts
                WHERE client_id = :client_id::uuid AND provider = :provider::text
                  AND reference = :payment_reference::text)),
        :payment_reference::text
    FROM room WHERE has_room AND (waits OR EXISTS (SELECT FROM provider_messages WHERE id = :id::uuid))
    ON CONFLICT (id) DO UPDATE
    SET status = excluded.status, body = excluded.body, note = excluded.note, unknown_type = excluded.unknown_type,
        order_id = excluded.order_id
    WHERE provider_messages.status = 'waiting' AND excluded.unknown_type IS NULL
)
SELECT has_room FROM room;
