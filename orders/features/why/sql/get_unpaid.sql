-- An unpaid order's client and deadline, and until when it is kept beyond that.
--
-- :order_id  uuid
-- returns    id, client, expires_at, ms, kept_until
--
-- ms: until the deadline. Kept until: null if nothing keeps the order beyond it.
SELECT order_id AS id, (SELECT name FROM api_clients WHERE id = client_id) AS client, expires_at,
    (extract(epoch FROM expires_at - statement_timestamp()) * 1000)::bigint AS ms,
    CASE WHEN kept_until > greatest(expires_at, statement_timestamp()) THEN kept_until END AS kept_until
FROM unpaid_orders
WHERE order_id = :order_id::uuid;
