"""The tables of freezes."""

from alembic import op

revision = "0004_freezes"
down_revision = "0003_providers"

TABLES = """
CREATE TABLE freezes (
  id uuid NOT NULL,
  client_id uuid,
  reason varchar(200) NOT NULL,
  opened_by varchar(100) NOT NULL,
  opened_at timestamptz NOT NULL,
  ends_at timestamptz NOT NULL,
  asked_ms bigint NOT NULL,
  give_back_seconds integer NOT NULL,
  thawed_by varchar(100),
  given_back integer DEFAULT '0' NOT NULL,
  given_back_at timestamptz,
  CONSTRAINT pk_freezes PRIMARY KEY (id),
  CONSTRAINT ck_freezes_give_back_seconds CHECK (give_back_seconds >= 0),
  CONSTRAINT fk_freezes_client_id FOREIGN KEY(client_id) REFERENCES api_clients (id)
);
CREATE INDEX ix_freezes_in_force ON freezes (ends_at, id) WHERE given_back_at IS NULL;
CREATE INDEX ix_freezes_opened ON freezes (opened_at, id);
CREATE TABLE api_signs (
  process uuid NOT NULL,
  at timestamptz NOT NULL,
  CONSTRAINT pk_api_signs PRIMARY KEY (process)
);
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(TABLES)


def downgrade() -> None:
    op.execute("DROP TABLE api_signs, freezes")
