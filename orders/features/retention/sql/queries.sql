-- name: get_details
-- An order's client, and its details.
-- :order_id  uuid
-- returns    client_id, client_reference, metadata, origin
SELECT client_id, client_reference, metadata, origin FROM orders WHERE id = :order_id::uuid;
