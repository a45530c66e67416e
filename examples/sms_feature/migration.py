"""The table of messages, and the trigger that fills it: ``migrations/versions/0007_sms.py``, once it is in the list."""

from importlib.resources import files

from alembic import op

revision = "0007_sms"
down_revision = "0005_feed"

TABLES = """
CREATE TABLE sms_messages (
  event_id bigint NOT NULL,
  order_id uuid NOT NULL,
  due_at timestamptz NOT NULL,
  CONSTRAINT pk_sms_messages PRIMARY KEY (event_id)
);
CREATE INDEX ix_sms_messages_due ON sms_messages (due_at, event_id) WHERE due_at IS NOT NULL;
"""


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql(TABLES)
    connection.exec_driver_sql((files("examples.sms_feature") / "outbox.sql").read_text("utf-8"))


def downgrade() -> None:
    op.execute("DROP TRIGGER sms_enqueue ON order_events")
    op.execute("DROP FUNCTION sms_enqueue")
    op.execute("DROP TABLE sms_messages")
