"""A version of the code on the schema of a later one, of an earlier one, and beside another service's."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from click.testing import CliRunner
from structlog.testing import capture_logs

from devtools.processes import ROOT
from orders.db import schema as schema_check
from orders.db.base import TRIGGERS
from orders.db.migrate import config, migrate
from orders.db.schema import check_ready, known_revisions, schema_version
from orders.errors import SchemaOutdated, StorageUnfit
from tests.kit.expiring import expire_now
from tests.kit.features import findings
from tests.kit.shop import Shop, opened

MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{revision}", "{below}"
branch_labels = depends_on = None

def upgrade() -> None:
    {upgrade}

def downgrade() -> None:
    pass
"""
ADDITIVE = """
    op.create_table("gifts", sa.Column("id", sa.Integer, primary_key=True))
    op.add_column("orders", sa.Column("gift_id", sa.Integer))
    op.add_column("stock_items", sa.Column("color", sa.String(9), nullable=False, server_default=""))
"""
RENAMED = 'op.alter_column("orders", "client_reference", new_column_name="reference")'
DEMANDED = 'op.add_column("orders", sa.Column("gift_id", sa.Integer, nullable=False))'


def migrated_further(url: str, folder: Path, upgrade: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring a database to the schema of a later version, which has one more migration.

    Forgets what earlier tests warned of, so that each sees every warning.
    """
    schema_check.warn_if_later.cache_clear()
    folder.mkdir(exist_ok=True)
    text = MIGRATION.format(revision="0999_later", below=schema_version(), upgrade=upgrade.strip())
    (folder / "0999_later.py").write_text(text)
    monkeypatch.setenv("DATABASE_URL", url)
    later = config()
    ours = ROOT / "migrations" / "versions"
    later.set_main_option("version_locations", f"{ours}:{folder}")
    command.upgrade(later, "head")


def works(shop: Shop) -> bool:
    """Whether orders are placed, paid and cancelled in time."""
    shop.stock()
    paid, late = shop.place(), shop.place()
    shop.pay(paid)
    shop.expire_in(-1000, late)
    expire_now(shop.service, [late.id])
    return shop.shelf() == (99, 0)


@pytest.mark.parametrize("missing", TRIGGERS)
@pytest.mark.parametrize(
    "change",
    [
        *("DROP TRIGGER {1} ON {0}", "ALTER TABLE {0} DISABLE TRIGGER USER"),
        *("SET session_replication_role = replica", "DROP FUNCTION {1} CASCADE"),
    ],
)
def test_a_database_without_a_trigger_is_not_served(shop: Shop, change: str, missing: str) -> None:
    """Until the files that make them are run."""
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(change.format(*missing.split(".")))
    with pytest.raises(StorageUnfit, match=missing):
        check_ready(shop.engine)
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("RESET ALL")
        for path in {*ROOT.glob("orders/**/*.sql")} - {*ROOT.glob("orders/**/sql/*")}:
            connection.exec_driver_sql(path.read_text())
    check_ready(shop.engine)


def test_a_later_schema_that_only_adds_is_served(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated_further(database_url, tmp_path / "later", ADDITIVE, monkeypatch)
    with opened(database_url) as shop, capture_logs() as logs:
        check_ready(shop.engine)
        check_ready(shop.engine)
        assert works(shop)
        found = findings(shop.engine).get("sql.schema")
    assert not found or (found.level, "newer than this code's" in found.summary) == ("ok", True)
    warnings = [line for line in logs if line["event"] == "schema of a later version"]
    assert [line["revision"] for line in warnings] == ["0999_later"]


def test_a_rollback_of_the_code_does_not_stop_at_its_migrations(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated_further(database_url, tmp_path / "later", ADDITIVE, monkeypatch)
    done = CliRunner().invoke(migrate)
    assert (done.exit_code, done.output) == (0, "0999_later, of a later version: nothing to do\n")


@pytest.mark.parametrize(
    ("upgrade", "misfit"),
    [(RENAMED, "orders.client_reference is missing"), (DEMANDED, "orders.gift_id must be given")],
)
def test_a_later_schema_that_does_more_than_add_is_refused(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upgrade: str, misfit: str
) -> None:
    migrated_further(database_url, tmp_path / "later", upgrade, monkeypatch)
    with opened(database_url) as shop:
        with pytest.raises(SchemaOutdated, match=f"0999_later, of a later version: {misfit}. Upgr"):
            check_ready(shop.engine)
        found = findings(shop.engine).get("sql.schema")
    assert not found or (found.level, misfit in found.advice) == ("failure", True)
    done = CliRunner().invoke(migrate)
    assert (done.exit_code, "Upgrade the code" in done.output) == (1, True)


def test_the_package_migrates_an_empty_database_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    for _ in range(2):
        done = CliRunner().invoke(migrate)
        assert (done.exit_code, done.output) == (0, f"{schema_version()}\n")
    with opened(database_url) as shop:
        assert works(shop)


@pytest.mark.parametrize("older", ["0000_older", ""])
def test_an_older_schema_is_refused_with_what_to_run(
    shop: Shop, older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = frozenset({schema_version(), "0000_older"})
    monkeypatch.setattr(schema_check, "known_revisions", lambda: known)
    with shop.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :it"), {"it": older})
    expected = f"It has {older or 'none'}, not {schema_version()}: run python -m orders migrate"
    with pytest.raises(SchemaOutdated, match=expected):
        check_ready(shop.engine)


def test_the_installed_package_knows_its_own_revisions() -> None:
    scripts = ScriptDirectory.from_config(config())
    assert known_revisions() == {script.revision for script in scripts.walk_revisions()}
    in_checkout = ScriptDirectory.from_config(Config(ROOT / "alembic.ini"))
    assert scripts.get_heads() == in_checkout.get_heads()
