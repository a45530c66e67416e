-- Messages, by the ids of their events.

-- name: list_messages
-- Those whose orders have a telephone number.
-- :ids     bigint[]
-- returns  event_id, order_id, phone
SELECT event_id, order_id, phone FROM (
    SELECT event_id, order_id, (SELECT metadata ->> 'phone' FROM orders WHERE orders.id = order_id) AS phone
    FROM sms_messages WHERE event_id = ANY (:ids::bigint[])
) AS message WHERE phone IS NOT NULL;

-- name: delete_messages
-- They are sent.
-- :ids  bigint[]
DELETE FROM sms_messages WHERE event_id = ANY (:ids::bigint[]);
