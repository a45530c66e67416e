"""The tables of payment providers and of attempts to pay."""

from alembic import op

revision = "0003_providers"
down_revision = "0002_webhooks"

TABLES = """
CREATE TABLE provider_endpoints (
  id uuid NOT NULL,
  client_id uuid NOT NULL,
  provider varchar(50) NOT NULL,
  created_at timestamptz NOT NULL,
  revoked_at timestamptz,
  close_url varchar(2000),
  CONSTRAINT pk_provider_endpoints PRIMARY KEY (id),
  CONSTRAINT ck_provider_endpoints_provider CHECK (provider = lower(provider)),
  CONSTRAINT fk_provider_endpoints_client_id FOREIGN KEY(client_id) REFERENCES api_clients (id)
);
CREATE INDEX ix_provider_endpoints_client ON provider_endpoints (client_id, id)
  WHERE client_id IS NOT NULL;
CREATE INDEX ix_provider_endpoints_valid ON provider_endpoints (client_id, provider)
  WHERE revoked_at IS NULL;
CREATE TABLE provider_secrets (
  endpoint_id uuid NOT NULL,
  id uuid NOT NULL,
  secret varchar(100) NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  CONSTRAINT pk_provider_secrets PRIMARY KEY (endpoint_id, id),
  CONSTRAINT fk_provider_secrets_endpoint_id
    FOREIGN KEY(endpoint_id) REFERENCES provider_endpoints (id)
);
CREATE TABLE provider_messages (
  id uuid NOT NULL,
  endpoint_id uuid NOT NULL,
  webhook_id varchar(255) NOT NULL,
  body bytea,
  created_at timestamptz NOT NULL,
  status varchar(7) NOT NULL,
  note varchar(500) NOT NULL,
  unknown_type varchar(100),
  order_id uuid,
  payment_reference varchar(255),
  CONSTRAINT pk_provider_messages PRIMARY KEY (id),
  CONSTRAINT fk_provider_messages_endpoint_id
    FOREIGN KEY(endpoint_id) REFERENCES provider_endpoints (id)
);
CREATE INDEX ix_provider_messages_status ON provider_messages (status, created_at, id)
  WHERE status IS NOT NULL;
CREATE INDEX ix_provider_messages_endpoint ON provider_messages (endpoint_id, status);
CREATE INDEX ix_provider_messages_type ON provider_messages (endpoint_id, unknown_type)
  WHERE unknown_type IS NOT NULL;
CREATE INDEX ix_provider_messages_order ON provider_messages (order_id)
  WHERE order_id IS NOT NULL;
CREATE INDEX ix_provider_messages_reference ON provider_messages (payment_reference)
  WHERE payment_reference IS NOT NULL AND order_id IS NULL;
CREATE TABLE payment_attempts (
  id uuid NOT NULL,
  order_id uuid NOT NULL,
  client_id uuid NOT NULL,
  provider varchar(50) NOT NULL,
  reference varchar(255) NOT NULL,
  opened_at timestamptz NOT NULL,
  ends_at timestamptz NOT NULL,
  asks boolean NOT NULL,
  settled_at timestamptz,
  outcome varchar(20),
  CONSTRAINT pk_payment_attempts PRIMARY KEY (id),
  CONSTRAINT ck_payment_attempts_provider CHECK (provider = lower(provider)),
  CONSTRAINT ck_payment_attempts_settled CHECK ((settled_at IS NULL) = (outcome IS NULL))
);
CREATE INDEX ix_payment_attempts_order ON payment_attempts (order_id) WHERE settled_at IS NULL;
CREATE INDEX ix_payment_attempts_opened ON payment_attempts (order_id, opened_at, id)
  WHERE order_id IS NOT NULL;
CREATE INDEX ix_payment_attempts_ends ON payment_attempts (ends_at, id)
  WHERE ends_at IS NOT NULL AND settled_at IS NULL;
CREATE UNIQUE INDEX uq_payment_attempts_reference
  ON payment_attempts (client_id, provider, reference);
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(TABLES)


def downgrade() -> None:
    op.execute(
        "DROP TABLE payment_attempts, provider_messages, provider_secrets, provider_endpoints"
    )
