-- A message for each order that is cancelled, in the transaction that cancels it: once for each statement, whatever number
-- of events it writes. The migration runs this file; running it again restores what is missing.

CREATE OR REPLACE FUNCTION sms_enqueue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sms_messages (event_id, order_id, due_at)
    SELECT id, order_id, at FROM written WHERE type = 'order.cancelled';
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER sms_enqueue AFTER INSERT ON order_events
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION sms_enqueue();
