-- Open a freeze, unless there is one of this id, or no such client.
--
-- :id                 uuid
-- :client             text     null: everybody's
-- :reason             text
-- :opened_by          text
-- :ms                 bigint   how long it lasts
-- :give_back_seconds  integer
-- returns             id
--
-- A freeze is in force while it has its row in `stops`, which is all that an expiry and the sweep know of it.
WITH opened AS (
    INSERT INTO freezes (id, client_id, reason, opened_by, opened_at, ends_at, asked_ms, give_back_seconds)
    SELECT :id::uuid, (SELECT id FROM api_clients WHERE name = :client::text), :reason::text, :opened_by::text,
        date_trunc('milliseconds', statement_timestamp()),
        date_trunc('milliseconds', statement_timestamp()) + :ms::bigint * interval '1 millisecond',
        :ms::bigint, :give_back_seconds::integer
    WHERE :client::text IS NULL OR EXISTS (SELECT FROM api_clients WHERE name = :client::text)
    ON CONFLICT DO NOTHING
    RETURNING id, client_id, ends_at
)
INSERT INTO stops (id, client_id, until) SELECT id, client_id, ends_at FROM opened
RETURNING id;
