-- Delete those of some orders, which are locked, that may go: they have ended, nothing happened to them lately, and
-- nothing is left to do about them. With each goes what the core keeps of it.
--
-- :ids     uuid[]
-- :since   timestamptz
-- returns  id
--
-- It begins after they were locked, and so sees all that was committed until then.
--
-- Each condition is an aggregate, which is looked up for each order; of EXISTS a planner may make a join with all rows.
WITH gone AS (
    DELETE FROM orders
    WHERE id = ANY (ARRAY(SELECT unnest(:ids::uuid[])))
      AND coalesce(changed_at < :since::timestamptz, true)
      AND (
          SELECT bool_or(place = 0) AND max(at) < :since::timestamptz
          FROM order_events WHERE order_id = orders.id)
      AND (
          SELECT coalesce(bool_and(status <> 'refund_due' AND NOT EXISTS (
              SELECT FROM payment_entries WHERE payment_id = payments.id
              GROUP BY provider, reference          -- a dispute that is open, or a change
              HAVING bool_or(kind = 'opened') AND NOT bool_or(kind IN ('won', 'lost'))
                OR max(greatest(at, failed_at)) >= :since::timestamptz)), true)
          FROM payments WHERE order_id = orders.id)
    RETURNING id
),
items AS (
    DELETE FROM order_items WHERE order_id = ANY (ARRAY(SELECT id FROM gone))
),
events AS (
    DELETE FROM order_events WHERE order_id = ANY (ARRAY(SELECT id FROM gone))
),
paid AS (
    DELETE FROM payments WHERE order_id = ANY (ARRAY(SELECT id FROM gone))
    RETURNING id
),
entries AS (
    DELETE FROM payment_entries WHERE payment_id = ANY (ARRAY(SELECT id FROM paid))
)
SELECT id FROM gone;
