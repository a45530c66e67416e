-- A subscription with the event to send to it, and what decides about a reminder.
--
-- :subscription_id  uuid
-- :order_id         uuid    null: of a ping
-- :event_id         bigint  likewise
-- returns           client_id, url, paused_at, secrets, event_at, data, origin, expires_in_ms, superseded
SELECT subscription.client_id, subscription.url, subscription.paused_at,
    ARRAY(SELECT secret FROM webhook_secrets
        WHERE subscription_id = :subscription_id::uuid AND coalesce(expires_at > statement_timestamp(), true)
        ORDER BY created_at DESC, id DESC LIMIT 10) AS secrets,
    event.at AS event_at, event.data, orders.origin,
    (SELECT (extract(epoch FROM expires_at - date_trunc('milliseconds', statement_timestamp())) * 1000)::bigint
        FROM unpaid_orders WHERE order_id = :order_id::uuid) AS expires_in_ms,
    EXISTS (SELECT FROM order_events AS newer
        WHERE newer.order_id = :order_id::uuid AND newer.id > :event_id::bigint
          AND newer.type IN ('order.created', 'order.extended')) AS superseded
FROM webhook_subscriptions AS subscription
LEFT JOIN order_events AS event ON event.order_id = :order_id::uuid AND event.id = :event_id::bigint
LEFT JOIN orders ON orders.id = :order_id::uuid
WHERE subscription.id = :subscription_id::uuid;
