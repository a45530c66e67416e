-- name: get_oldest_overdue
-- How long the unpaid order is overdue whose deadline passed first, of those that nothing keeps or stops.
-- returns  ms
SELECT (extract(epoch FROM date_trunc('milliseconds', statement_timestamp()) - expires_at) * 1000)::bigint AS ms
FROM unpaid_orders
WHERE expires_at <= statement_timestamp()
  AND coalesce(kept_until <= statement_timestamp(), true)
  AND NOT EXISTS (SELECT FROM stops WHERE client_id IS NULL)
  AND client_id <> ALL (ARRAY(SELECT client_id FROM stops WHERE client_id IS NOT NULL))
ORDER BY expires_at, order_id
LIMIT 1;
