-- What is read of freezes. One is in force until it has given back: it cancels nobody between its end and then.

-- name: get
-- One freeze.
-- :id      uuid
-- returns  id, client, reason, opened_by, opened_at, ends_at, left_ms, asked_ms, give_back_seconds, thawed_by,
--          given_back, given_back_at
SELECT id, (SELECT name FROM api_clients WHERE api_clients.id = client_id) AS client, reason, opened_by, opened_at,
    ends_at, ceil(extract(epoch FROM ends_at - statement_timestamp()) * 1000)::bigint AS left_ms, asked_ms,
    give_back_seconds, thawed_by, given_back, given_back_at
FROM freezes
WHERE id = :id::uuid;

-- name: list_in_force
-- Freezes in force, the one that ends first before the others.
-- :most    integer  null: all
-- returns  id, client, reason, opened_by, opened_at, ends_at, left_ms, asked_ms, give_back_seconds, thawed_by,
--          given_back, given_back_at
SELECT id, (SELECT name FROM api_clients WHERE api_clients.id = client_id) AS client, reason, opened_by, opened_at,
    ends_at, ceil(extract(epoch FROM ends_at - statement_timestamp()) * 1000)::bigint AS left_ms, asked_ms,
    give_back_seconds, thawed_by, given_back, given_back_at
FROM freezes
WHERE given_back_at IS NULL
  AND ends_at > timestamptz '1970-01-01 UTC'        -- any: so that the index of these is searched
ORDER BY ends_at, id LIMIT :most::integer;

-- name: list_latest
-- Freezes, the latest first, from a page's end on.
-- :last_at    timestamptz
-- :last_id    uuid
-- :page_size  integer
-- returns     id, client, reason, opened_by, opened_at, ends_at, left_ms, asked_ms, give_back_seconds, thawed_by,
--             given_back, given_back_at
SELECT id, (SELECT name FROM api_clients WHERE api_clients.id = client_id) AS client, reason, opened_by, opened_at,
    ends_at, ceil(extract(epoch FROM ends_at - statement_timestamp()) * 1000)::bigint AS left_ms, asked_ms,
    give_back_seconds, thawed_by, given_back, given_back_at
FROM freezes
WHERE (opened_at, id) < (:last_at::timestamptz, :last_id::uuid)
ORDER BY opened_at DESC, id DESC LIMIT :page_size::integer;

-- name: count_concerned
-- How many unpaid orders, of a client or of all, expire before a moment, up to a number.
-- :client  text         null: of all
-- :before  timestamptz
-- :most    integer
-- returns  count
SELECT count(*) FROM (
    SELECT FROM unpaid_orders
    WHERE expires_at < :before::timestamptz
      AND (:client::text IS NULL OR client_id = (SELECT id FROM api_clients WHERE name = :client::text))
    ORDER BY expires_at, order_id LIMIT :most::integer
) AS concerned;

-- name: sign
-- Record that an API process serves, and forget those that ended long ago. An old sign says that there is an API.
-- :process  uuid
WITH forgotten AS (
    DELETE FROM api_signs WHERE at < statement_timestamp() - interval '1 day' AND process <> :process::uuid
)
INSERT INTO api_signs (process, at) VALUES (:process::uuid, date_trunc('milliseconds', statement_timestamp()))
ON CONFLICT (process) DO UPDATE SET at = excluded.at;

-- name: look
-- The database's clock, when an API process signed last, if one ever did, and which rules have an open freeze; and a text
-- that changes with every freeze; of the last 20, because after a jump of the clock the newest may not be the latest.
-- returns  at, signed_at, is_shut, is_doubted, latest
SELECT date_trunc('milliseconds', clock_timestamp()) AS at,
    (SELECT max(at) FROM api_signs WHERE at <= clock_timestamp()) AS signed_at,  -- not by a clock that was ahead
    EXISTS (SELECT FROM freezes
        WHERE given_back_at IS NULL AND ends_at > statement_timestamp() AND opened_by = 'door') AS is_shut,
    EXISTS (SELECT FROM freezes
        WHERE given_back_at IS NULL AND ends_at > statement_timestamp() AND opened_by = 'clock') AS is_doubted,
    (SELECT string_agg(id::text, ' ')
        FROM (SELECT id FROM freezes ORDER BY opened_at DESC, id DESC LIMIT 20) AS last) AS latest;

-- name: list_owners
-- Whose these API keys are.
-- :ids     uuid[]
-- returns  id, client
SELECT id, (SELECT name FROM api_clients WHERE api_clients.id = api_keys.client_id) AS client FROM api_keys
WHERE id = ANY (:ids::uuid[]);
