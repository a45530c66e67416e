-- What the limits count.

-- name: count_unpaid
-- How many unpaid orders a client has, up to a number, and the pieces that those reserve.
-- :client_id  uuid
-- :most       bigint
-- returns     orders, pieces
SELECT count(*) AS orders, coalesce(sum(pieces), 0)::bigint AS pieces
FROM (SELECT pieces FROM unpaid_orders WHERE client_id = :client_id::uuid LIMIT :most::bigint) AS counted;
