-- Providers' endpoints, their secrets, and the messages that came.
--
-- A rotation adds a secret, and the others expire some time later: one whose response was lost invalidates none in use.
-- Secrets change in the transaction that locked their endpoint, and after it did: a statement that waits for the lock does
-- not see what its holder wrote.

-- name: add_endpoint
-- Insert an endpoint of the client of a name, if there is one, and its secret.
-- :id         uuid
-- :client     text
-- :provider   text
-- :close_url  text  or null
-- :secret     text
-- returns     endpoint_id
WITH endpoint AS (
    INSERT INTO provider_endpoints (id, client_id, provider, created_at, close_url)
    SELECT :id::uuid, id, :provider::text, date_trunc('milliseconds', statement_timestamp()), :close_url::text
    FROM api_clients WHERE name = :client::text
    RETURNING id, created_at
)
INSERT INTO provider_secrets (endpoint_id, id, secret, created_at)
SELECT id, gen_random_uuid(), :secret::text, created_at FROM endpoint
RETURNING endpoint_id;

-- name: list_registered
-- The providers that a client has registered.
-- :client_id  uuid
-- returns     provider
SELECT DISTINCT provider FROM provider_endpoints WHERE client_id = :client_id::uuid AND revoked_at IS NULL;

-- name: lock_valid
-- Lock an endpoint that is not revoked.
-- :id      uuid
-- returns  id
SELECT id FROM provider_endpoints
WHERE id = :id::uuid AND CASE WHEN revoked_at IS NULL THEN true ELSE false END
FOR UPDATE;

-- name: replace_secret
-- Insert a secret, make the others expire, and delete those that have expired.
-- :endpoint_id  uuid
-- :secret       text
-- :overlap_ms   bigint
WITH expired AS (
    DELETE FROM provider_secrets WHERE endpoint_id = :endpoint_id::uuid AND expires_at <= statement_timestamp()
),
expiring AS (
    UPDATE provider_secrets
    SET expires_at = date_trunc('milliseconds', statement_timestamp()) + :overlap_ms::bigint * interval '1 millisecond'
    WHERE endpoint_id = :endpoint_id::uuid
      AND coalesce(expires_at > statement_timestamp() + :overlap_ms::bigint * interval '1 millisecond', true)
)
INSERT INTO provider_secrets (endpoint_id, id, secret, created_at)
VALUES (:endpoint_id::uuid, gen_random_uuid(), :secret::text, date_trunc('milliseconds', statement_timestamp()));

-- name: set_close_url
-- Set where the provider of an endpoint that is not revoked is asked.
-- :id         uuid
-- :close_url  text  or null
UPDATE provider_endpoints SET close_url = :close_url::text
WHERE id = :id::uuid AND CASE WHEN revoked_at IS NULL THEN true ELSE false END;

-- name: revoke
-- Revoke an endpoint, unless it was revoked before.
-- :id  uuid
UPDATE provider_endpoints SET revoked_at = date_trunc('milliseconds', statement_timestamp())
WHERE id = :id::uuid AND CASE WHEN revoked_at IS NULL THEN true ELSE false END;

-- name: delete_secrets
-- :endpoint_id  uuid
DELETE FROM provider_secrets WHERE endpoint_id = :endpoint_id::uuid;

-- name: list_endpoints
-- The endpoints of one client, or of all, in the order in which they were made.
-- :client  text  null: of all
-- returns  id, client, provider, created_at, revoked_at, old_secret_until, close_url
SELECT e.id, c.name AS client, e.provider, e.created_at, e.revoked_at,
    (SELECT max(expires_at) FROM provider_secrets
        WHERE endpoint_id = e.id AND expires_at > statement_timestamp()) AS old_secret_until,
    e.close_url
FROM provider_endpoints e JOIN api_clients c ON c.id = e.client_id
WHERE e.client_id = ANY (ARRAY(
    SELECT id FROM api_clients WHERE name = :client::text
    UNION ALL
    SELECT id FROM api_clients WHERE :client::text IS NULL))
ORDER BY e.created_at, e.id;

-- name: get_endpoint
-- One endpoint.
-- :id      uuid
-- returns  id, client, provider, created_at, revoked_at, old_secret_until, close_url
SELECT e.id, c.name AS client, e.provider, e.created_at, e.revoked_at,
    (SELECT max(expires_at) FROM provider_secrets
        WHERE endpoint_id = e.id AND expires_at > statement_timestamp()) AS old_secret_until,
    e.close_url
FROM provider_endpoints e JOIN api_clients c ON c.id = e.client_id
WHERE e.id = :id::uuid;

-- name: get_valid_endpoint
-- What messages to an endpoint are verified with, and until when, in milliseconds from now.
-- :id      uuid
-- returns  client_id, provider, secrets, valid_ms
SELECT e.client_id, e.provider, array_agg(s.secret) AS secrets,
    coalesce(1000 * extract(epoch FROM min(s.expires_at) - statement_timestamp())::float8, 'infinity') AS valid_ms
FROM provider_endpoints e JOIN provider_secrets s ON s.endpoint_id = e.id
WHERE e.id = :id::uuid AND CASE WHEN e.revoked_at IS NULL THEN true ELSE false END
  AND s.endpoint_id = :id::uuid AND coalesce(s.expires_at > statement_timestamp(), true)
GROUP BY e.client_id, e.provider;

-- name: list_valid_ids
-- The newest valid endpoints: enough that guesses of ids lock no owner out.
-- returns  id
SELECT id FROM provider_endpoints
WHERE CASE WHEN revoked_at IS NULL THEN true ELSE false END
ORDER BY id DESC LIMIT 10000;

-- name: get_closer
-- Where a client's provider is asked to close an attempt, and with what: at its newest endpoint that has a URL.
-- :client_id  uuid
-- :provider   text
-- returns     url, secrets, at
SELECT close_url AS url,
    ARRAY(
        SELECT secret FROM provider_secrets
        WHERE endpoint_id = e.id AND coalesce(expires_at > statement_timestamp(), true)) AS secrets,
    statement_timestamp() AS at
FROM provider_endpoints e
WHERE client_id = :client_id::uuid AND provider = :provider::text AND revoked_at IS NULL AND close_url IS NOT NULL
ORDER BY created_at DESC LIMIT 1;

-- name: list_messages
-- A page of all clients' messages of one status, oldest first.
-- :status     text
-- :last_at    timestamptz  where the page before ended
-- :last_id    uuid
-- :page_size  bigint
-- returns     id, provider, client, webhook_id, body, created_at, status, note
SELECT id,
    (SELECT provider FROM provider_endpoints e WHERE e.id = m.endpoint_id) AS provider,
    (SELECT name FROM api_clients
        WHERE id = (SELECT client_id FROM provider_endpoints e WHERE e.id = m.endpoint_id)) AS client,
    webhook_id, body, created_at, status, note
FROM provider_messages m
WHERE status = :status::text AND (created_at, id) > (:last_at::timestamptz, :last_id::uuid)
ORDER BY created_at, id LIMIT :page_size::bigint;

-- name: get_message
-- One message.
-- :id      uuid
-- returns  id, endpoint_id, client_id, provider, client, webhook_id, body, created_at, status, note
SELECT id, endpoint_id,
    (SELECT client_id FROM provider_endpoints e WHERE e.id = m.endpoint_id) AS client_id,
    (SELECT provider FROM provider_endpoints e WHERE e.id = m.endpoint_id) AS provider,
    (SELECT name FROM api_clients
        WHERE id = (SELECT client_id FROM provider_endpoints e WHERE e.id = m.endpoint_id)) AS client,
    webhook_id, body, created_at, status, note
FROM provider_messages m
WHERE id = :id::uuid;

-- name: count_waiting
-- How many messages wait, up to 10,000, and how long the oldest has.
-- returns  messages, oldest_ms
SELECT count(*) AS messages,
    coalesce((extract(epoch FROM statement_timestamp() - min(created_at)) * 1000)::bigint, 0) AS oldest_ms
FROM (
    SELECT created_at FROM provider_messages
    WHERE status = 'waiting'
      AND created_at > timestamptz '1970-01-01 UTC'  -- any: so that the index of these is searched
    ORDER BY created_at LIMIT 10000
) AS oldest;

-- name: dismiss_message
-- Settle a message that waits by hand.
-- :id  uuid
UPDATE provider_messages SET status = 'settled', note = 'dismissed', body = NULL WHERE id = :id::uuid AND status = 'waiting';

-- name: list_about
-- The messages of providers about an order, and those that named a payment of it before that was known.
-- :order_id  uuid
-- returns    id, created_at, status, note, webhook_id, unknown_type, payment_reference, body
SELECT id, created_at, status, note, webhook_id, unknown_type, payment_reference, body
FROM provider_messages
WHERE id = ANY (ARRAY(
    SELECT id FROM provider_messages WHERE order_id = :order_id::uuid
    UNION ALL
    SELECT id FROM provider_messages AS message
    WHERE payment_reference = ANY (ARRAY(SELECT reference FROM payments WHERE order_id = :order_id::uuid))
      AND order_id IS NULL
      AND CASE WHEN :order_id::uuid = (
          SELECT payments.order_id FROM payments
          WHERE payments.client_id = (SELECT client_id FROM provider_endpoints WHERE id = message.endpoint_id)
            AND payments.provider = (SELECT provider FROM provider_endpoints WHERE id = message.endpoint_id)
            AND payments.reference = message.payment_reference) THEN true ELSE false END))
ORDER BY created_at, id;

-- name: erase
-- Delete some messages, but for those that wait.
-- :ids  uuid[]
DELETE FROM provider_messages
WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[]))) AND CASE WHEN status <> 'waiting' THEN true ELSE false END;

-- name: list_needed
-- Those of some locked orders that have an attempt which was not settled before some time, or a message that waits. They
-- may come more than once, and with others.
-- :ids     uuid[]
-- :since   timestamptz
-- returns  order_id
--
-- It begins after they were locked, and so sees all that was committed until then.
SELECT order_id FROM payment_attempts
WHERE order_id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))
  AND CASE WHEN settled_at < :since::timestamptz THEN false ELSE true END   -- hidden from the index of open ones
UNION ALL
SELECT order_id FROM provider_messages
WHERE order_id = ANY (ARRAY(SELECT unnest(:ids::uuid[]))) AND CASE WHEN status = 'waiting' THEN true ELSE false END
UNION ALL
SELECT (SELECT payments.order_id FROM payments       -- likewise, as in list_about
    WHERE payments.client_id = (SELECT client_id FROM provider_endpoints WHERE id = message.endpoint_id)
      AND payments.provider = (SELECT provider FROM provider_endpoints WHERE id = message.endpoint_id)
      AND payments.reference = message.payment_reference)
FROM provider_messages AS message
WHERE payment_reference = ANY (ARRAY(
    SELECT reference FROM payments WHERE order_id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))))
  AND order_id IS NULL
  AND CASE WHEN status = 'waiting' THEN true ELSE false END;

-- name: delete_of_orders
-- Delete the attempts of deleted orders, and the messages about them; one that came meanwhile and waits stays.
-- :ids  uuid[]
WITH attempts AS (
    DELETE FROM payment_attempts WHERE order_id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))
)
DELETE FROM provider_messages
WHERE order_id = ANY (ARRAY(SELECT unnest(:ids::uuid[]))) AND CASE WHEN status <> 'waiting' THEN true ELSE false END;

-- name: find_dispute
-- What the provider of a payment reported of a dispute, by its reference; or that the dispute is another payment's.
-- :client_id   uuid
-- :payment_id  uuid
-- :kind        text
-- :reference   text
-- returns      payment_id, amount_minor, failed_at
SELECT payment_id, amount_minor, failed_at
FROM payment_entries
WHERE client_id = :client_id::uuid
  AND provider = (SELECT provider FROM payments WHERE id = :payment_id::uuid)
  AND kind IN (:kind::text, 'dispute') AND (kind <> 'dispute' OR payment_id <> :payment_id::uuid)
  AND reference = :reference::text
ORDER BY kind = 'dispute' LIMIT 1;
