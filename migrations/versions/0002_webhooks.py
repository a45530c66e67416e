"""The tables of webhooks, and the triggers that write them."""

from importlib.resources import files

from alembic import op

revision = "0002_webhooks"
down_revision = "0001_core"

TABLES = """
CREATE TABLE webhook_subscriptions (
  id uuid NOT NULL,
  client_id uuid NOT NULL,
  url varchar(2000) NOT NULL,
  events text[],
  reminds boolean NOT NULL,
  created_at timestamptz NOT NULL,
  paused_at timestamptz,
  pause_reason varchar(20),
  deleted_at timestamptz,
  asked text,
  CONSTRAINT pk_webhook_subscriptions PRIMARY KEY (id),
  CONSTRAINT fk_webhook_subscriptions_client_id FOREIGN KEY(client_id) REFERENCES api_clients (id)
);
CREATE INDEX ix_webhook_subscriptions_client ON webhook_subscriptions (client_id, created_at, id)
  WHERE client_id IS NOT NULL AND deleted_at IS NULL;
CREATE TABLE webhook_secrets (
  subscription_id uuid NOT NULL,
  id uuid NOT NULL,
  secret varchar(100) NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  CONSTRAINT pk_webhook_secrets PRIMARY KEY (subscription_id, id),
  CONSTRAINT fk_webhook_secrets_subscription_id
    FOREIGN KEY(subscription_id) REFERENCES webhook_subscriptions (id)
);
CREATE TABLE webhook_deliveries (
  id uuid DEFAULT gen_random_uuid() NOT NULL,
  subscription_id uuid NOT NULL,
  order_id uuid,
  event_id bigint,
  type varchar(30) NOT NULL,
  status varchar(9) DEFAULT 'pending' NOT NULL,
  created_at timestamptz NOT NULL,
  due_at timestamptz NOT NULL,
  attempts integer DEFAULT '0' NOT NULL,
  body text,
  delivered_at timestamptz,
  last_attempt_at timestamptz,
  last_status integer,
  last_error varchar(200),
  last_body varchar(1000),
  CONSTRAINT pk_webhook_deliveries PRIMARY KEY (id),
  CONSTRAINT ck_webhook_deliveries_status CHECK (status IN ('pending', 'delivered', 'dead'))
);
CREATE INDEX ix_webhook_deliveries_line ON webhook_deliveries (subscription_id, due_at, id)
  WHERE status = 'pending';
CREATE INDEX ix_webhook_deliveries_order
  ON webhook_deliveries (order_id, subscription_id, event_id);
CREATE INDEX ix_webhook_deliveries_subscription
  ON webhook_deliveries (subscription_id, status, created_at, id);
"""


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql(TABLES)
    connection.exec_driver_sql(
        (files("orders.features.webhooks") / "outbox.sql").read_text("utf-8")
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER webhooks_fan_out ON order_events")
    op.execute("DROP TRIGGER webhooks_forget ON orders")
    op.execute("DROP FUNCTION webhooks_fan_out, webhooks_forget")
    op.execute("DROP TABLE webhook_deliveries, webhook_secrets, webhook_subscriptions")
