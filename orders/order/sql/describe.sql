-- Change details of a client's own order, whatever its state, if it has an expected version.
--
-- :order_id          uuid
-- :client_id         uuid
-- :versions          text[]  those expected; null: any
-- :given             text[]  the names of the details that change
-- :client_reference  text
-- :metadata          json
-- :origin            text
-- returns            id
--
-- Details may be about a person and decide nothing. In `orders` only they change. Lists look for the reference in the
-- row of an unpaid order, and in the terminal event of one that has ended.
--
-- No row: there is no such order, or it has another version, or it ended after this statement had begun: then it is
-- neither unpaid nor has ended, and only the next statement sees how.
WITH unpaid AS (
    UPDATE unpaid_orders SET version = version + 1,
        client_reference = CASE WHEN 'client_reference' = ANY (:given::text[])
            THEN :client_reference::text ELSE client_reference END
    WHERE order_id = :order_id::uuid
      AND CASE WHEN client_id = :client_id::uuid THEN true ELSE false END  -- hidden from the index of clients
      AND coalesce(version::text = ANY (:versions::text[]), true)
    RETURNING order_id
),
ended AS (
    UPDATE order_events SET version = version + 1,
        client_reference = CASE WHEN 'client_reference' = ANY (:given::text[])
            THEN :client_reference::text ELSE client_reference END
    WHERE order_id = :order_id::uuid AND place = 0
      AND client_id = :client_id::uuid
      AND coalesce(version::text = ANY (:versions::text[]), true)
    RETURNING order_id
)
UPDATE orders SET changed_at = date_trunc('milliseconds', clock_timestamp()),
    fingerprint = 'erased:',                        -- it was made of the details, and they could be guessed from it
    client_reference = CASE WHEN 'client_reference' = ANY (:given::text[])
        THEN :client_reference::text ELSE client_reference END,
    metadata = CASE WHEN 'metadata' = ANY (:given::text[]) THEN :metadata::json ELSE metadata END,
    origin = CASE WHEN 'origin' = ANY (:given::text[]) THEN :origin::text ELSE origin END
WHERE id = ANY (ARRAY(SELECT order_id FROM unpaid UNION ALL SELECT order_id FROM ended))
RETURNING id;
