"""The trigger of the feed."""

from importlib.resources import files

from alembic import op

revision = "0005_feed"
down_revision = "0004_freezes"


def upgrade() -> None:
    text = (files("orders.features.feed") / "announce.sql").read_text("utf-8")
    op.get_bind().exec_driver_sql(text)


def downgrade() -> None:
    op.execute("DROP TRIGGER feed_announce ON order_events")
    op.execute("DROP FUNCTION feed_announce")
