-- The transactions that have long held locks for which cancellations may be waiting, the oldest first.
--
-- :long_ms  bigint
-- returns   tables, pid, prepared, since, application, state
--
-- Whoever has locked a row has locked its table too, in one of the two weakest modes listed here. Those of tables that
-- cancellations lock no rows of harm nobody; the stronger ones close a table to writers at least. Reads no table of ours,
-- so it waits for none.
SELECT string_agg(DISTINCT c.relname, ', ' ORDER BY c.relname) AS tables, l.pid, p.gid AS prepared,
    coalesce(who.xact_start, p.prepared) AS since, who.application_name AS application,
    concat_ws(', waits for pid ', who.state, (pg_blocking_pids(l.pid))[1]) AS state
FROM pg_locks AS l
JOIN pg_class AS c ON c.oid = l.relation
LEFT JOIN pg_stat_activity AS who ON who.pid = l.pid
LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL
    AND p.transaction IN (SELECT transactionid FROM pg_locks WHERE virtualtransaction = l.virtualtransaction)
WHERE l.locktype = 'relation'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND c.relnamespace = current_schema()::regnamespace
  AND (l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
      OR l.mode IN ('RowShareLock', 'RowExclusiveLock') AND c.relname IN ('unpaid_orders', 'stock_items'))
  AND coalesce(coalesce(who.xact_start, p.prepared)
      <= clock_timestamp() - :long_ms::bigint * interval '1 millisecond', true)
GROUP BY l.pid, p.gid, p.prepared, who.xact_start, who.application_name, who.state
ORDER BY since, l.pid LIMIT 5;
