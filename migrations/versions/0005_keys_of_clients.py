"""API keys have a table of their own: a client has any number, each with scopes, expiry and its
last use.

Existing keys keep working, and may report payments as before. The previous version keeps working
too: triggers copy the keys that it makes, and the secrets that are overwritten as its documentation
says. It does not accept keys that this version makes, and ignores expiry. A later revision drops
the triggers and the columns ``secret_hash`` and ``scopes`` of ``api_clients``.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005_keys_of_clients"
down_revision = "0004_events_by_order"
branch_labels = None
depends_on = None

ID = postgresql.UUID(as_uuid=False).with_variant(sa.CHAR(36), "sqlite")
INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")

#: Whoever could place orders could report payments.
KEY = (
    "INSERT INTO api_keys (id, client_id, secret_hash, scopes, created_at) "
    "SELECT id, id, secret_hash, "
    "CASE WHEN scopes LIKE '%orders%' THEN scopes || ' payments' ELSE scopes END, created_at "
    "FROM api_clients WHERE secret_hash <> ''"
)
OVERWRITE = "UPDATE api_keys SET secret_hash = NEW.secret_hash WHERE id = NEW.id"
TRIGGERS = (
    ("key_of_client_before", "INSERT", "NEW.secret_hash <> ''", f"{KEY} AND id = NEW.id"),
    ("secret_of_client_before", "UPDATE OF secret_hash", "true", OVERWRITE),
)


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("client_id", ID, nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(100), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("lifetime_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.ForeignKeyConstraint(["client_id"], ["api_clients.id"], name="fk_api_keys_client_id"),
        if_not_exists=True,
    )
    op.create_index("ix_api_keys_client", "api_keys", ["client_id", "id"], if_not_exists=True)
    op.execute(f"{KEY} ON CONFLICT DO NOTHING")
    for name, event, condition, statement in TRIGGERS:
        _create_trigger(name, event, condition, statement)


def downgrade() -> None:
    """Each client's original key is kept, unless it had an expiry; added keys are lost."""
    op.execute(
        "UPDATE api_clients SET secret_hash = '' "
        "WHERE id IN (SELECT id FROM api_keys WHERE expires_at IS NOT NULL)"
    )
    for name, *_ in TRIGGERS:
        if _on_postgresql():
            op.execute(f"DROP FUNCTION IF EXISTS {name} CASCADE")
        else:
            op.execute(f"DROP TRIGGER IF EXISTS {name}")
    op.drop_table("api_keys")


def _on_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _create_trigger(name: str, event: str, condition: str, statement: str) -> None:
    trigger = f"CREATE TRIGGER {name} AFTER {event} ON api_clients FOR EACH ROW WHEN ({condition})"
    if not _on_postgresql():
        op.execute(f"DROP TRIGGER IF EXISTS {name}")  # of an interrupted run
        op.execute(f"{trigger} BEGIN {statement}; END")
        return
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {statement}; RETURN NULL; END $$"
    )
    op.execute(f"{trigger} EXECUTE FUNCTION {name}()")
