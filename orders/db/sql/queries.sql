-- What the database says of its schema.

-- name: get_state
-- The revisions that migrations brought the database to, and whether it refuses to write.
-- returns  revisions, read_only
SELECT array_agg(version_num::text) AS revisions, current_setting('transaction_read_only') = 'on' AS read_only
FROM alembic_version;

-- name: get_encoding
-- How the database encodes text.
-- returns  encoding
SELECT current_setting('server_encoding') AS encoding;

-- name: get_missing
-- A moment, which this session has to be able to read; which rights its user lacks on what; and which triggers are missing
-- or do not fire in this session.
-- :tables     text[]
-- :sequences  text[]
-- :triggers   text[]  each as table.trigger
-- returns     at, verbs, names, triggers
SELECT statement_timestamp() AS at, string_agg(DISTINCT verb, ', ') AS verbs, string_agg(DISTINCT name, ', ') AS names,
    (SELECT string_agg(name, ', ') FROM unnest(:triggers::text[]) AS name
        WHERE NOT EXISTS (
            SELECT FROM pg_trigger
            WHERE tgrelid = to_regclass(split_part(name, '.', 1))
              AND tgname = split_part(name, '.', 2)
              AND tgenabled IN ('A',
                  CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END))) AS triggers
FROM (
    SELECT verb, name FROM unnest(:tables::text[]) AS name, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS verb
    WHERE NOT has_table_privilege(name, verb)
    UNION ALL
    SELECT 'BYPASSRLS', name FROM unnest(:tables::text[]) AS name WHERE row_security_active(name)
    UNION ALL
    SELECT verb, name FROM unnest(:sequences::text[]) AS name, unnest('{SELECT,USAGE}'::text[]) AS verb
    WHERE NOT has_sequence_privilege(name, verb)
) AS missing;

-- name: set_little_memory
-- For the rest of this transaction, a query whose rows do not fit into 64 kB writes them to a temporary file.
-- returns  set_config
SELECT set_config('work_mem', '64kB', true);

-- name: spill
-- Such a query, for which a full disk has no room. Nothing is kept, and the catalog does not change.
-- returns  count
SELECT count(*) FROM generate_series(1, 10000);
