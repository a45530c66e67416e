-- Clients, and their API keys. A key is valid until it expires; to revoke it is to let it expire now.
--
-- What is stored is rounded down to whole milliseconds, so a comparison needs no rounding.

-- name: add_client
-- Insert a client, unless there is one with its name.
-- :id    uuid
-- :name  text
INSERT INTO api_clients (id, name, created_at)
VALUES (:id::uuid, :name::text, date_trunc('milliseconds', statement_timestamp()))
ON CONFLICT DO NOTHING;

-- name: get_client_id
-- The client of a name.
-- :name    text
-- returns  id
SELECT id FROM api_clients WHERE name = :name::text;

-- name: add_key
-- Insert a key of the client of a name.
-- :id           uuid
-- :client       text
-- :secret_hash  text
-- :scopes       text    separated by spaces
-- :lifetime_ms  bigint  null: it does not expire
-- :label        text    or null
INSERT INTO api_keys (id, client_id, secret_hash, scopes, created_at, expires_at, lifetime_ms, label)
SELECT :id::uuid, id, :secret_hash::text, :scopes::text, date_trunc('milliseconds', statement_timestamp()),
    date_trunc('milliseconds', statement_timestamp()) + :lifetime_ms::bigint * interval '1 millisecond',
    :lifetime_ms::bigint, :label::text
FROM api_clients WHERE name = :client::text;

-- name: add_successor
-- Insert a key that succeeds another, with its scopes and lifetime, if that one is valid.
-- :id           uuid
-- :of           uuid
-- :secret_hash  text
-- returns       id
INSERT INTO api_keys (id, client_id, secret_hash, scopes, created_at, expires_at, lifetime_ms, label)
SELECT :id::uuid, client_id, :secret_hash::text, scopes, date_trunc('milliseconds', statement_timestamp()),
    date_trunc('milliseconds', statement_timestamp()) + lifetime_ms * interval '1 millisecond',
    lifetime_ms, label
FROM api_keys
WHERE id = :of::uuid
  AND coalesce(expires_at > statement_timestamp(), true)
FOR UPDATE  -- so that it is not revoked meanwhile
RETURNING id;

-- name: list_keys
-- The keys of one client, or of all, in the order in which they were made; or one key.
-- :client  text  null: of all
-- :id      uuid  null: all
-- returns  id, client, label, scopes, created_at, expires_at, last_used_at, expired
SELECT k.id, c.name AS client, k.label, k.scopes, k.created_at, k.expires_at, k.last_used_at,
    coalesce(k.expires_at <= statement_timestamp(), false) AS expired
FROM api_keys k JOIN api_clients c ON c.id = k.client_id
WHERE c.name = coalesce(:client::text, c.name) AND k.id = coalesce(:id::uuid, k.id)
ORDER BY k.created_at, k.id;

-- name: get_valid_key
-- What a request needs of one key, if it is valid; for how long it still is, and since when it was not used.
-- :id      uuid
-- returns  client_id, name, secret_hash, scopes, valid_ms, unused_ms, read_only
SELECT k.client_id, c.name, k.secret_hash, k.scopes,
    coalesce(1000 * extract(epoch FROM k.expires_at - statement_timestamp())::float8, 'infinity') AS valid_ms,
    coalesce(1000 * extract(epoch FROM statement_timestamp() - k.last_used_at)::float8, 'infinity') AS unused_ms,
    current_setting('transaction_read_only') = 'on' AS read_only
FROM api_keys k JOIN api_clients c ON c.id = k.client_id
WHERE k.id = :id::uuid
  AND coalesce(k.expires_at > statement_timestamp(), true);

-- name: list_valid_ids
-- The newest valid keys: enough that guesses of ids lock no owner out.
-- returns  id
SELECT id FROM api_keys
WHERE coalesce(expires_at > statement_timestamp(), true)
ORDER BY id DESC LIMIT 10000;

-- name: expire_key
-- Let a key expire some time from now, unless it expires sooner.
-- :id  uuid
-- :ms  bigint
UPDATE api_keys
SET expires_at = date_trunc('milliseconds', statement_timestamp()) + :ms::bigint * interval '1 millisecond'
WHERE id = :id::uuid
  AND coalesce(expires_at > statement_timestamp() + :ms::bigint * interval '1 millisecond', true);

-- name: note_use
-- Record that a key is used now, unless that was recorded in the last so many milliseconds.
-- :id  uuid
-- :ms  bigint
UPDATE api_keys SET last_used_at = date_trunc('milliseconds', statement_timestamp())
WHERE id = :id::uuid
  AND coalesce(last_used_at < statement_timestamp() - :ms::bigint * interval '1 millisecond', true);
