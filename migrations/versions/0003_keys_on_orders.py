"""Idempotency keys and fingerprints on the orders themselves; payment references per customer.

On PostgreSQL nothing is blocked: the indexes are built concurrently, and existing rows are filled
in a few thousand at a time. After an interrupted run, the next one continues.

The version before this one keeps working: it goes on writing its keys to ``idempotency_keys``, and
a trigger puts them on its orders, and the customer on its payments. So while both versions run, one
key still makes one order, and this version replays the orders of the other. A request that this
version answered gets 503 if it is repeated at the version before. A later revision drops the
triggers and ``idempotency_keys``, when the version before is gone.

On SQLite, which has one host, stop the service before migrating.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003_keys_on_orders"
down_revision = "0002_list_indexes"
branch_labels = None
depends_on = None

ID = postgresql.UUID(as_uuid=False).with_variant(sa.CHAR(36), "sqlite")
COLUMNS: dict[str, Any] = {
    "idempotency_key": sa.String(255),
    "fingerprint": sa.String(64),
    "timeout_ms": sa.BigInteger(),
}
#: Table, name, columns, whether it is unique.
INDEXES = [
    ("idempotency_keys", "ix_idempotency_keys_order", ["order_id"], False),
    ("orders", "uq_orders_idempotency_key", ["customer_id", "idempotency_key"], True),
    ("payments", "uq_payments_reference", ["customer_id", "provider", "reference"], True),
]
PAGE = 5_000

TRIGGERS = """
CREATE OR REPLACE FUNCTION key_of_version_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT key, k.fingerprint INTO NEW.idempotency_key, NEW.fingerprint
        FROM idempotency_keys k WHERE k.order_id = NEW.id;
    IF EXISTS (SELECT FROM orders o WHERE o.customer_id = NEW.customer_id
               AND o.idempotency_key = NEW.idempotency_key) THEN
        RAISE SQLSTATE '55P03' USING MESSAGE = 'a newer version placed an order with this key';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER key_of_version_before BEFORE INSERT ON orders FOR EACH ROW
    WHEN (NEW.idempotency_key IS NULL) EXECUTE FUNCTION key_of_version_before();
CREATE OR REPLACE FUNCTION customer_of_version_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT o.customer_id INTO NEW.customer_id FROM orders o WHERE o.id = NEW.order_id;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER customer_of_version_before BEFORE INSERT ON payments FOR EACH ROW
    WHEN (NEW.customer_id IS NULL) EXECUTE FUNCTION customer_of_version_before();
"""

KEY_OF_ORDER = (
    "UPDATE orders SET idempotency_key = k.key, fingerprint = k.fingerprint FROM idempotency_keys k "
    "WHERE k.order_id = orders.id AND orders.idempotency_key IS NULL"
)
CUSTOMER_OF_PAYMENT = (
    "UPDATE payments SET customer_id = o.customer_id FROM orders o "
    "WHERE o.id = payments.order_id AND payments.customer_id IS NULL"
)
KEYS_BACK = (
    "INSERT INTO idempotency_keys (client_id, key, fingerprint, order_id, created_at) "
    "SELECT customer_id, idempotency_key, fingerprint, id, created_at FROM orders "
    "WHERE idempotency_key IS NOT NULL ON CONFLICT DO NOTHING"
)


def upgrade() -> None:
    with op.get_context().autocommit_block():
        for name, kind in COLUMNS.items():
            _add_column("orders", sa.Column(name, kind))
        _add_column("payments", sa.Column("customer_id", ID))
        _create_index(*INDEXES[0])
        if _on_postgresql():
            op.execute(TRIGGERS)
        _fill("orders", KEY_OF_ORDER)
        _fill("payments", CUSTOMER_OF_PAYMENT)
        for index in INDEXES[1:]:
            _create_index(*index)
        if _on_postgresql():
            # SET NOT NULL reads the whole table and blocks everybody meanwhile, unless a valid
            # check says the same; and validating a check blocks nobody.
            op.execute("ALTER TABLE payments DROP CONSTRAINT IF EXISTS uq_payments_provider")
            op.execute("ALTER TABLE payments DROP CONSTRAINT IF EXISTS ck_payments_customer")
            op.execute(
                "ALTER TABLE payments ADD CONSTRAINT ck_payments_customer "
                "CHECK (customer_id IS NOT NULL) NOT VALID"
            )
            op.execute("ALTER TABLE payments VALIDATE CONSTRAINT ck_payments_customer")
            op.execute("ALTER TABLE payments ALTER COLUMN customer_id SET NOT NULL")
            op.execute("ALTER TABLE payments DROP CONSTRAINT ck_payments_customer")
        else:
            with op.batch_alter_table("payments") as batch:
                batch.drop_constraint("uq_payments_provider", type_="unique")
                batch.alter_column("customer_id", existing_type=ID, nullable=False)


def downgrade() -> None:
    """What this version placed is kept; a repeated request for it is refused by the version before."""
    with op.get_context().autocommit_block():
        if _on_postgresql():
            op.execute("DROP FUNCTION IF EXISTS key_of_version_before CASCADE")
            op.execute("DROP FUNCTION IF EXISTS customer_of_version_before CASCADE")
        op.execute(KEYS_BACK)
        for _, name, _, _ in INDEXES:
            op.drop_index(name, if_exists=True)
        with op.batch_alter_table("payments") as batch:
            batch.create_unique_constraint("uq_payments_provider", ["provider", "reference"])
            batch.drop_column("customer_id")
        with op.batch_alter_table("orders") as batch:
            for name in COLUMNS:
                batch.drop_column(name)


def _on_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _add_column(table: str, column: sa.Column[Any]) -> None:
    op.add_column(table, column, if_not_exists=_on_postgresql() or None)


def _create_index(table: str, name: str, columns: list[str], unique: bool) -> None:  # noqa: FBT001
    concurrently = _on_postgresql()
    op.drop_index(name, table, if_exists=True, postgresql_concurrently=concurrently)
    op.create_index(name, table, columns, unique=unique, postgresql_concurrently=concurrently)


def _fill(table: str, update: str) -> None:
    """Run an UPDATE of a whole table, a page of it at a time, so that no row is locked for long."""
    bind, last = op.get_bind(), "00000000-0000-0000-0000-000000000000"
    page = sa.text(f"SELECT id FROM {table} WHERE id > :last ORDER BY id LIMIT {PAGE}")  # noqa: S608
    page = page.bindparams(sa.bindparam("last", type_=ID))
    part = sa.text(f"{update} AND {table}.id > :last AND {table}.id <= :end")
    part = part.bindparams(sa.bindparam("last", type_=ID), sa.bindparam("end", type_=ID))
    while ids := bind.scalars(page, {"last": last}).all():
        bind.execute(part, {"last": last, "end": str(ids[-1])})
        last = str(ids[-1])
