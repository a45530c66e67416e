-- The tables whose lock holds up every cancellation, or even this look at orders, and who has locked them for long.
--
-- :read     text[]  the tables that each cancellation reads, or that this look does
-- :written  text[]  those that it writes
-- :long_ms  bigint
-- returns   order_id, what, pid, prepared, waiter, since, application, state, is_closed
--
-- is_closed: the table cannot be read either. Who waits for such a lock stops all who come later, too. Reads no table of
-- ours, so it waits for none. The columns are those of list_locked_rows.
SELECT NULL::uuid AS order_id, 'the table ' || c.relname AS what, who.pid, p.gid AS prepared, NULL::int AS waiter,
    coalesce(who.xact_start, p.prepared) AS since, who.application_name AS application,
    concat_ws(', waits for pid ', who.state, (pg_blocking_pids(who.pid))[1]) AS state,
    l.mode = 'AccessExclusiveLock' AS is_closed
FROM pg_locks AS l
JOIN pg_class AS c ON c.oid = l.relation
LEFT JOIN pg_stat_activity AS who ON who.pid = l.pid
LEFT JOIN pg_prepared_xacts AS p ON '-1/' || p.transaction = l.virtualtransaction
WHERE l.locktype = 'relation'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND c.relnamespace = current_schema()::regnamespace
  AND (l.mode = 'AccessExclusiveLock' AND c.relname = ANY (:read::text[])
      OR l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
          AND c.relname = ANY (:written::text[]))
  AND coalesce(coalesce(who.xact_start, p.prepared)
      <= clock_timestamp() - :long_ms::bigint * interval '1 millisecond', true)
ORDER BY since, what LIMIT 5;
