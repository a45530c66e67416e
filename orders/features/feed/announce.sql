-- How whoever writes events of orders announces them, so that readers of the feed know which may still come: each statement
-- takes a number from the sequence and locks it until its transaction ends. It does so before it draws any id, so all
-- that it draws are greater. The migration runs this file; running it again restores what is missing.

CREATE OR REPLACE FUNCTION feed_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(3710::bigint << 48 | nextval('order_events_id_seq'));  -- 3710: our locks, nobody else's
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER feed_announce BEFORE INSERT ON order_events
    FOR EACH STATEMENT EXECUTE FUNCTION feed_announce();
