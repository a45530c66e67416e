-- What webhooks write in the transaction of whoever writes events of orders or changes their details: once for each
-- statement, whatever number of rows it has. The migration runs this file; running it again restores what is missing.

-- A delivery of each event to each subscription that wants it, and one for the reminder that it brings with it.
CREATE OR REPLACE FUNCTION webhooks_fan_out() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (                                     -- costs nearly nothing where nobody subscribes
        SELECT FROM webhook_subscriptions
        WHERE client_id = ANY (ARRAY(SELECT client_id FROM written)) AND deleted_at IS NULL
    ) THEN
        INSERT INTO webhook_deliveries (subscription_id, order_id, event_id, type, created_at, due_at)
        SELECT wish.id, written.order_id, written.id, wish.type, written.at, written.at
        FROM written
        CROSS JOIN LATERAL (                        -- look-ups for each: a session keeps the plan that fitted its first row
            SELECT id, written.type, events FROM webhook_subscriptions
            WHERE client_id = written.client_id AND deleted_at IS NULL
            UNION ALL
            SELECT id, 'order.expiring', events FROM webhook_subscriptions
            WHERE client_id = written.client_id AND deleted_at IS NULL
              AND written.type IN ('order.created', 'order.extended') AND reminds
        ) AS wish
        WHERE coalesce(wish.type = ANY (events), true)
          AND written.client_id = ANY (ARRAY(       -- and together a single one for clients without subscriptions
            SELECT client_id FROM webhook_subscriptions
            WHERE client_id = ANY (ARRAY(SELECT client_id FROM written)) AND deleted_at IS NULL));
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER webhooks_fan_out AFTER INSERT ON order_events
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION webhooks_fan_out();

-- What was sent about these orders, and answered, is written anew if it is sent again. Each row is written: whoever is
-- about to write what they read before is refused.
CREATE OR REPLACE FUNCTION webhooks_forget() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE webhook_deliveries SET body = NULL, last_body = NULL
    WHERE order_id = ANY (ARRAY(SELECT id FROM changed));
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER webhooks_forget AFTER UPDATE ON orders
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION webhooks_forget();
