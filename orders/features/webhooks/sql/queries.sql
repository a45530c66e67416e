-- Subscriptions to webhooks, their secrets, and single deliveries. A subscription is only marked as deleted.

-- name: lock_client
-- Lock a client, so that its subscriptions are made one after another.
-- :client_id  uuid
-- returns     id
SELECT id FROM api_clients WHERE id = :client_id::uuid FOR NO KEY UPDATE;

-- name: subscribe
-- Insert a subscription with its first secret, unless there is one of this id; the client is locked.
-- :id         uuid
-- :client_id  uuid
-- :url        text
-- :events     text[]   null: all
-- :reminds    boolean  whether orders bring reminders
-- :asked      text     the URL and events of the request
-- :secret     text
-- returns     created_at, others
WITH made AS (
    INSERT INTO webhook_subscriptions (id, client_id, url, events, reminds, created_at, asked)
    VALUES (:id::uuid, :client_id::uuid, :url::text, :events::text[], :reminds::boolean,
        date_trunc('milliseconds', statement_timestamp()), :asked::text)
    ON CONFLICT DO NOTHING
    RETURNING id, created_at
),
signing AS (
    INSERT INTO webhook_secrets (subscription_id, id, secret, created_at)
    SELECT id, gen_random_uuid(), :secret::text, created_at FROM made
)
SELECT created_at, (SELECT count(*) FROM webhook_subscriptions
    WHERE client_id = :client_id::uuid AND deleted_at IS NULL) AS others
FROM made;

-- name: get_made
-- What a subscription was made of, even if it is deleted, and the oldest secret that signs.
-- :id      uuid
-- returns  created_at, asked, secret
SELECT created_at, asked, (SELECT secret FROM webhook_secrets
    WHERE subscription_id = :id::uuid AND coalesce(expires_at > statement_timestamp(), true)
    ORDER BY created_at, webhook_secrets.id LIMIT 1) AS secret
FROM webhook_subscriptions WHERE id = :id::uuid;

-- name: lock_subscription
-- Lock a client's own subscription.
-- :id         uuid
-- :client_id  uuid
-- returns     id
SELECT id FROM webhook_subscriptions
WHERE id = :id::uuid AND client_id = :client_id::uuid AND deleted_at IS NULL
FOR UPDATE;

-- name: get_subscription
-- A subscription.
-- :id         uuid
-- :client_id  uuid  null: of any client
-- returns     id, url, events, created_at, paused_at, pause_reason, previous_secret_expires_at
SELECT id, url, events, created_at, paused_at, pause_reason,
    (SELECT max(expires_at) FROM webhook_secrets
        WHERE subscription_id = webhook_subscriptions.id AND expires_at > statement_timestamp())
        AS previous_secret_expires_at
FROM webhook_subscriptions
WHERE id = :id::uuid
  AND client_id = coalesce(:client_id::uuid, client_id)
  AND deleted_at IS NULL;

-- name: list_subscriptions
-- A client's subscriptions, oldest first, from a page's end on.
-- :client_id  uuid
-- :last_at    timestamptz
-- :last_id    uuid
-- :page_size  bigint
-- returns     id, url, events, created_at, paused_at, pause_reason, previous_secret_expires_at
SELECT id, url, events, created_at, paused_at, pause_reason,
    (SELECT max(expires_at) FROM webhook_secrets
        WHERE subscription_id = webhook_subscriptions.id AND expires_at > statement_timestamp())
        AS previous_secret_expires_at
FROM webhook_subscriptions
WHERE client_id = :client_id::uuid
  AND deleted_at IS NULL
  AND (created_at, id) > (:last_at::timestamptz, :last_id::uuid)
ORDER BY created_at, id
LIMIT :page_size;

-- name: change_subscription
-- Change a client's own subscription.
-- :id          uuid
-- :client_id   uuid     null: of any client
-- :url         text     null: as it is
-- :has_events  boolean
-- :events      text[]   if it has them
-- :paused      boolean  null: as it is
UPDATE webhook_subscriptions
SET url = coalesce(:url::text, url),
    events = CASE WHEN :has_events::boolean THEN :events::text[] ELSE events END,
    paused_at = CASE WHEN coalesce(:paused::boolean, paused_at IS NOT NULL)
        THEN coalesce(paused_at, date_trunc('milliseconds', statement_timestamp())) END,
    pause_reason = CASE WHEN coalesce(:paused::boolean, paused_at IS NOT NULL)
        THEN coalesce(pause_reason, 'requested') END
WHERE id = :id::uuid
  AND client_id = coalesce(:client_id::uuid, client_id)
  AND deleted_at IS NULL;

-- name: pause_gone
-- Pause a subscription whose endpoint is gone, unless it has another one by now, or is paused or deleted.
-- :id   uuid
-- :url  text
UPDATE webhook_subscriptions
SET paused_at = date_trunc('milliseconds', statement_timestamp()), pause_reason = 'gone'
WHERE id = :id::uuid
  AND url = :url::text
  AND paused_at IS NULL;

-- name: unsubscribe
-- Mark a client's own subscription as deleted, and pause it for ever, so that nothing is sent. Its deliveries are pruned.
-- :id         uuid
-- :client_id  uuid
UPDATE webhook_subscriptions
SET deleted_at = date_trunc('milliseconds', statement_timestamp()),
    paused_at = date_trunc('milliseconds', statement_timestamp())
WHERE id = :id::uuid AND client_id = :client_id::uuid AND deleted_at IS NULL;

-- name: set_reminders
-- Have all orders bring reminders, or none.
-- :reminds  boolean
UPDATE webhook_subscriptions SET reminds = :reminds::boolean WHERE reminds <> :reminds::boolean;

-- name: list_ids
-- The subscriptions of clients.
-- :client_ids  uuid[]
-- returns      client_id, subscription_ids
SELECT client_id, ARRAY(
    SELECT id FROM webhook_subscriptions
    WHERE webhook_subscriptions.client_id = asked.client_id AND deleted_at IS NULL
) AS subscription_ids
FROM unnest(:client_ids::uuid[]) AS asked (client_id);

-- name: rotate_secret
-- Insert a secret of a locked subscription. Of the others, delete those that have expired, and let the rest expire some
-- time from now, unless they expire sooner.
-- :subscription_id  uuid
-- :secret           text
-- :ms               bigint
WITH deleted AS (
    DELETE FROM webhook_secrets
    WHERE subscription_id = :subscription_id::uuid AND expires_at <= statement_timestamp()
),
expiring AS (
    UPDATE webhook_secrets
    SET expires_at = date_trunc('milliseconds', statement_timestamp()) + :ms::bigint * interval '1 millisecond'
    WHERE subscription_id = :subscription_id::uuid
      AND coalesce(expires_at > statement_timestamp() + :ms::bigint * interval '1 millisecond', true)
)
INSERT INTO webhook_secrets (subscription_id, id, secret, created_at)
VALUES (:subscription_id::uuid, gen_random_uuid(), :secret::text, date_trunc('milliseconds', statement_timestamp()));

-- name: get_delivery
-- A delivery of a subscription that is not deleted.
-- :id         uuid
-- :client_id  uuid  null: of any client
-- returns     id, subscription_id, order_id, type, status, attempts, created_at, next_attempt_at, delivered_at,
--             last_attempt_at, last_status, last_error, last_body
SELECT id, subscription_id, order_id, type, status, attempts, created_at,
    CASE WHEN status = 'pending' THEN due_at END AS next_attempt_at,
    delivered_at, last_attempt_at, last_status, last_error, last_body
FROM webhook_deliveries
WHERE id = :id::uuid
  AND (SELECT client_id = coalesce(:client_id::uuid, client_id) FROM webhook_subscriptions
      WHERE webhook_subscriptions.id = subscription_id AND deleted_at IS NULL);

-- name: redeliver
-- Have a delivery sent again, as if for the first time.
-- :id         uuid
-- :client_id  uuid  null: of any client
UPDATE webhook_deliveries
SET status = 'pending', due_at = date_trunc('milliseconds', statement_timestamp()), attempts = 0, delivered_at = NULL
WHERE id = :id::uuid
  AND (SELECT client_id = coalesce(:client_id::uuid, client_id) FROM webhook_subscriptions
      WHERE webhook_subscriptions.id = subscription_id AND deleted_at IS NULL);

-- name: ping
-- Insert a delivery that is about nothing, to a client's own subscription.
-- :id         uuid
-- :client_id  uuid
-- returns     id
INSERT INTO webhook_deliveries (subscription_id, type, created_at, due_at)
SELECT id, 'webhook.ping', date_trunc('milliseconds', statement_timestamp()),
    date_trunc('milliseconds', statement_timestamp())
FROM webhook_subscriptions
WHERE id = :id::uuid AND client_id = :client_id::uuid AND deleted_at IS NULL
RETURNING id;

-- name: claim
-- Lease a delivery that is as it was read, so that nobody else sends it meanwhile. Its body is kept for later attempts,
-- unless the row was changed since: the order that it was written of may have been erased.
-- :id        uuid
-- :token     timestamptz  when it was due
-- :as_read   text         its row's version
-- :lease_ms  bigint
-- :body      text
-- returns    due_at
UPDATE webhook_deliveries
SET due_at = date_trunc('milliseconds', statement_timestamp()) + :lease_ms::bigint * interval '1 millisecond',
    attempts = attempts + 1,
    body = :body::text
WHERE id = :id::uuid
  AND CASE WHEN status = 'pending' THEN true ELSE false END     -- hidden from the indexes: the id is looked up
  AND due_at = :token::timestamptz
  AND webhook_deliveries.xmin::text = :as_read::text            -- PostgreSQL changes it with every change of a row
RETURNING due_at;

-- name: put_off
-- Put off a delivery that nobody has claimed, put off or recorded since it was read.
-- :id        uuid
-- :token     timestamptz  when it was due
-- :delay_ms  bigint
UPDATE webhook_deliveries
SET due_at = date_trunc('milliseconds', statement_timestamp()) + :delay_ms::bigint * interval '1 millisecond'
WHERE id = :id::uuid
  AND CASE WHEN status = 'pending' THEN true ELSE false END
  AND due_at = :token::timestamptz;

-- name: drop
-- Delete a delivery that nobody has claimed, put off or recorded since it was read, and that is no longer to be sent.
-- :id     uuid
-- :token  timestamptz  when it was due
DELETE FROM webhook_deliveries
WHERE id = :id::uuid
  AND CASE WHEN status = 'pending' THEN true ELSE false END
  AND due_at = :token::timestamptz;

-- name: list_ids_about
-- The ids of the messages about some events, but no reminders.
-- :order_ids  uuid[]
-- :event_ids  bigint[]
-- returns     event_id, ids
SELECT event_id, array_agg(id ORDER BY id) AS ids
FROM webhook_deliveries
WHERE order_id = ANY (ARRAY(SELECT unnest(:order_ids::uuid[])))
  AND event_id = ANY (ARRAY(SELECT unnest(:event_ids::bigint[])))
  AND type <> 'order.expiring'
GROUP BY event_id;

-- name: list_sent
-- What was sent about an order, as far as it is kept, and what was answered.
-- :order_id  uuid
-- returns    id, type, created_at, body, last_body
SELECT id, type, created_at, body, last_body
FROM webhook_deliveries
WHERE order_id = :order_id::uuid AND (body IS NOT NULL OR last_body IS NOT NULL)
ORDER BY created_at, id;

-- name: delete_of_orders
-- Delete the deliveries of deleted orders.
-- :ids  uuid[]
DELETE FROM webhook_deliveries WHERE order_id = ANY (ARRAY(SELECT unnest(:ids::uuid[])));

-- name: list_about
-- The deliveries about an order, with their URLs, for the operators' page.
-- :order_id  uuid
-- :most      bigint
-- returns    type, status, attempts, created_at, due_at, delivered_at, last_attempt_at, last_status, last_error, url,
--            paused_at
SELECT d.type, d.status, d.attempts, d.created_at, d.due_at, d.delivered_at, d.last_attempt_at, d.last_status,
    d.last_error, s.url, s.paused_at
FROM webhook_deliveries d JOIN webhook_subscriptions s ON s.id = d.subscription_id
WHERE d.order_id = :order_id::uuid
  AND s.id = ANY (ARRAY(SELECT subscription_id FROM webhook_deliveries WHERE order_id = :order_id::uuid))
ORDER BY d.event_id, d.id LIMIT :most::bigint;
