"""Migrations make exactly the tables of the models, and can be taken back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from devtools.processes import ROOT, run, wait_until
from orders.config import Settings
from orders.db.base import metadata
from orders.db.database import create_engine
from orders.db.schema import check_ready, schema_version
from tests.kit.pages import UPGRADING, the_block

BUILT = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'ix_orders_channel'::regclass"
#: What an interrupted build leaves.
INTERRUPTED = (
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_orders_channel'::regclass"
)


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(database_url, poolclass=sa.NullPool)
    yield made
    made.dispose()


@pytest.fixture
def config(engine: sa.Engine) -> Config:
    made = Config(ROOT / "alembic.ini")
    made.attributes["engine"] = engine
    return made


def schema(engine: sa.Engine) -> dict[str, Any]:
    """Everything that a database says about its tables."""
    look = sa.inspect(engine)
    found = {}
    for table in sorted({*look.get_table_names()} - {"alembic_version"}):
        found[table] = {
            "columns": [
                (c["name"], repr(c["type"]), c["nullable"], c["default"], c.get("identity"))
                for c in look.get_columns(table)
            ],
            "key": look.get_pk_constraint(table),
            "foreign": sorted(map(repr, look.get_foreign_keys(table))),
            "unique": sorted(map(repr, look.get_unique_constraints(table))),
            "checks": sorted(map(repr, look.get_check_constraints(table))),
            "indexes": sorted(
                (str(i["name"]), repr(i["column_names"]), bool(i["unique"]), condition(i))
                for i in look.get_indexes(table)
            ),
        }
    return found


def condition(index: Any) -> str:
    return str(index.get("dialect_options", {}).get("postgresql_where", ""))


#: Every function, view, table and sequence.
LEFT = """
SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
UNION ALL
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind <> 'i'
"""


def test_migrations_can_be_taken_back(engine: sa.Engine, database_url: str, config: Config) -> None:
    command.upgrade(config, "head")
    serving = create_engine(Settings.of(database_url=database_url, redis_url=""))
    check_ready(serving)
    serving.dispose()
    command.downgrade(config, "base")
    with engine.connect() as connection:
        assert connection.scalars(sa.text(LEFT)).all() == ["alembic_version"]


def test_migrations_make_what_the_models_say(engine: sa.Engine, config: Config) -> None:
    """Checks and conditions of indexes as well, which alembic does not compare."""
    metadata.create_all(engine)
    wanted = schema(engine)
    metadata.drop_all(engine)
    command.upgrade(config, "head")
    assert schema(engine) == wanted
    assert any(table["checks"] for table in wanted.values())
    assert "order.cancelled" in repr(wanted["order_events"]["indexes"])


def test_several_migrators_at_once_migrate_once(database_url: str) -> None:
    with ThreadPoolExecutor(3) as migrators:
        env = {"DATABASE_URL": database_url}
        done = [migrators.submit(run, ["alembic", "upgrade", "head"], env) for _ in range(3)]
        for each in done:
            each.result()
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        [revision] = connection.scalars(sa.text("SELECT version_num FROM alembic_version"))
    assert revision == schema_version()
    assert {i["name"] for i in sa.inspect(engine).get_indexes("unpaid_orders")} == {
        "ix_unpaid_orders_expires",
        "ix_unpaid_orders_client",
        "ix_unpaid_orders_client_expires",
        "ix_unpaid_orders_reference",
    }


def add_migration(config: Config, folder: Path, upgrade: str) -> None:
    """Let one more follow, of this code, from another folder."""
    (folder / "0999_more.py").write_text(
        "from alembic import op\nimport sqlalchemy as sa\n"
        f"revision, down_revision = '0999_more', '{schema_version()}'\n{upgrade}"
    )
    config.set_main_option("version_path_separator", "os")
    config.set_main_option("version_locations", f"{ROOT}/migrations/versions:{folder}")


def test_who_reads_a_table_holds_up_nobody_behind_a_migration(
    engine: sa.Engine, config: Config, tmp_path: Path
) -> None:
    """A reader that stays, a migration that wants to alter the table, and others that read it."""
    command.upgrade(config, "head")
    add_migration(
        config,
        tmp_path,
        "def upgrade(): op.add_column('orders', sa.Column('more', sa.Integer()))\n",
    )
    config.set_main_option("lock_timeout_ms", "300")
    with engine.begin() as owner:  # whose own limit is shorter
        owner.execute(sa.text(f"ALTER DATABASE {engine.url.database} SET statement_timeout = 250"))
    look = sa.text("SELECT count(*) FROM orders")
    waits = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")
    with ThreadPoolExecutor(1) as migrator, engine.connect() as reader, engine.connect() as other:
        reader.execute(look)
        migrating = migrator.submit(command.upgrade, config, "head")
        with engine.connect() as watcher:
            wait_until(lambda: watcher.scalar(waits), "the migration to wait")
        other.execute(sa.text("SET statement_timeout = 5000"))
        other.execute(look)  # behind the migration, but not for as long as the reader stays
        other.rollback()
        assert not migrating.done()
        reader.rollback()
        migrating.result()
    assert "more" in {each["name"] for each in sa.inspect(engine).get_columns("orders")}


def test_the_pages_migration_can_be_run_again(
    engine: sa.Engine, config: Config, tmp_path: Path
) -> None:
    command.upgrade(config, "head")
    add_migration(config, tmp_path, the_block("python", "postgresql_concurrently", UPGRADING))
    for _ in range(2):
        command.upgrade(config, "0999_more")
        with engine.begin() as connection:
            found = connection.execute(sa.text(BUILT)).scalars().all()
            assert found == [True], "it is built, and whole"
            it = {"it": schema_version()}
            connection.execute(sa.text("UPDATE alembic_version SET version_num = :it"), it)
            connection.execute(sa.text(INTERRUPTED))


def test_drift_would_be_found(engine: sa.Engine, config: Config) -> None:
    command.upgrade(config, "head")
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders ADD COLUMN note VARCHAR(10)"))
    with pytest.raises(CommandError, match="note"):
        command.check(config)


def test_the_code_was_written_for_the_newest_revision() -> None:
    scripts = ScriptDirectory.from_config(Config(ROOT / "alembic.ini"))
    assert scripts.get_heads() == [schema_version()]
    assert all(script.module.downgrade for script in scripts.walk_revisions())


@pytest.mark.slow
def test_the_command_line_needs_a_database_by_name() -> None:
    with pytest.raises(RuntimeError, match="DATABASE_URL is not set"):
        run(["alembic", "upgrade", "head"], {"DATABASE_URL": ""})
    with pytest.raises(RuntimeError, match="offline mode is not supported"):
        run(["alembic", "upgrade", "head", "--sql"], {"DATABASE_URL": "postgresql+psycopg:///none"})
    with pytest.raises(
        RuntimeError, match="names an unsupported database or driver: set it to postgresql"
    ):
        run(["alembic", "upgrade", "head"], {"DATABASE_URL": "sqlite:///none.db"})
